"""Numbers and pictures to Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from towerpack.core.optional import require
from towerpack.monitor.base import MonitorBase, RunInfo
from towerpack.monitor.run_record import plain


class WandbMonitor(MonitorBase):
    """Sends scalars, pictures, histograms, text and hyperparameters to Weights & Biases.

    Takes a run that you made, or makes one with `wandb.init(**kwargs)` when training begins, in the
    run's directory; `mode="offline"` needs no network. A run made here is finished with the
    training, as failed after an exception. Values of one step go out together. Needs the extra
    `trackers`.
    """

    def __init__(self, run: Any = None, **kwargs: Any):
        if run is not None and kwargs:
            raise ValueError(f"expected a run or arguments for wandb.init, received both: {kwargs}")
        self.run = run
        self._kwargs = kwargs
        self._own = run is None
        self._record: dict[str, Any] = {}
        self._step = 0
        self._exit_code = 0

    def open(self, run: RunInfo) -> None:
        self._wandb = require("wandb", extra="trackers")
        if self._own:
            place = {"dir": str(run.directory)} if run.directory else {}
            self.run = self._wandb.init(**(place | self._kwargs))
        if run.configuration:
            self.run.config.update(plain(run.configuration), allow_val_change=True)

    def process_scalar(self, name: str, value: float, step: int, epoch: int) -> None:
        self._put(name, value, step)

    def process_image(self, name: str, images: np.ndarray, step: int, epoch: int) -> None:
        self._put(name, [self._wandb.Image(image.squeeze()) for image in images], step)

    def process_histogram(self, name: str, values: np.ndarray, step: int, epoch: int) -> None:
        finite = values[np.isfinite(values)]
        if finite.size:
            self._put(name, self._wandb.Histogram(finite), step)

    def process_text(self, name: str, text: str, step: int, epoch: int) -> None:
        self._put(name, text, step)

    def process_hyperparameters(self, values: Mapping[str, Any]) -> None:
        self.run.config.update(dict(values), allow_val_change=True)

    def flush(self, step: int, epoch: int) -> None:
        self._send()

    def end(self, error: BaseException | None) -> None:
        self._exit_code = 0 if error is None else 1

    def close(self) -> None:
        if self.run is None:
            return
        self._send()
        if self._own:
            self.run.finish(exit_code=self._exit_code)
            self.run = None

    def _put(self, name: str, value: Any, step: int) -> None:
        if step != self._step:
            self._send()
        self._step = step
        self._record[name] = value

    def _send(self) -> None:
        if self._record:
            self.run.log(self._record, step=self._step)
        self._record = {}
