"""How long the run will take."""

from __future__ import annotations

import time
from collections import deque
from datetime import timedelta

import numpy as np

from towerpack.callbacks.base import Callback
from towerpack.core import logger


class EstimatedTimeLeft(Callback):
    """Logs after each epoch how long the remaining ones will take.

    From the median (or the mean) time of the last epochs, callbacks included.
    """

    def __init__(self, last_k_epochs: int = 5, median: bool = True):
        if last_k_epochs < 1:
            raise ValueError(f"expected at least one epoch, received {last_k_epochs}")
        self.median = median
        self._times: deque[float] = deque(maxlen=last_k_epochs)

    def _before_train(self) -> None:
        self._times.clear()
        self._last = time.monotonic()

    def _trigger_epoch(self) -> None:
        now = time.monotonic()
        self._times.append(now - self._last)
        self._last = now
        left = self.trainer.max_epoch - self.epoch_num
        if left > 0:
            each = float(np.median(self._times) if self.median else np.mean(self._times))
            logger.info("estimated time left: %s", timedelta(seconds=round(each * left)))
