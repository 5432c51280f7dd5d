"""Ends of training."""

from __future__ import annotations

import math
import time
from typing import Any

from towerpack.callbacks.base import Callback, StopTraining
from towerpack.core import logger
from towerpack.core.every import Every, every


class EarlyStopping(Callback):
    """Stops training when a scalar has not improved for `patience` triggers.

    `stat` is the name of a scalar put to the monitors: place this after what puts it. It improves
    by falling (with `reverse=True`, by rising) by more than `min_delta`; NaN is no improvement. A
    trigger at which nothing new was put does not count. The best value and the waiting survive a
    restart.

    >>> stop = EarlyStopping("validation_error", patience=5)
    """

    chief_only = False

    def __init__(
        self, stat: str, patience: int = 10, min_delta: float = 0.0, reverse: bool = False
    ):
        if patience < 1:
            raise ValueError(f"expected patience of at least 1, received {patience}")
        if min_delta < 0:
            raise ValueError(f"expected min_delta >= 0, received {min_delta}")
        self.stat, self.patience, self.reverse = stat, patience, reverse
        self.min_delta = float(min_delta)
        self._reset()

    def _reset(self) -> None:
        self.best: float | None = None
        self.waited = 0
        self._seen = -1

    def _setup_graph(self) -> None:
        self._reset()

    def _trigger(self) -> None:
        try:
            step, value = self.trainer.monitors.get_history(self.stat)[-1]
        except KeyError as error:
            logger.warning("EarlyStopping: %s", error.args[0])
            return
        if step <= self._seen:
            return
        self._seen = step
        if self._improves(value):
            self.best, self.waited = value, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            best = "" if self.best is None else f" than {self.best:.5g}"
            raise StopTraining(f"{self.stat} got no better{best} in {self.waited} triggers")

    def _improves(self, value: float) -> bool:
        if math.isnan(value):
            return False
        if self.best is None:
            return True
        gain = value - self.best if self.reverse else self.best - value
        return gain > self.min_delta

    def _state(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited, "seen": self._seen}

    def _restore(self, state: dict[str, Any]) -> None:
        self.best, self.waited, self._seen = state["best"], state["waited"], state["seen"]


class StopAt(Callback):
    """Stops training after so many steps or epochs of the model, or so much time of this run.

    `when` is a number of steps, or `'10000 steps'`, `'3 epochs'`, `'8 h'`. Time is looked at
    between two calls of the step function. A step count that lies behind a resumed model stops at
    once.

    >>> limit = StopAt("8 h")
    """

    chief_only = False

    def __init__(self, when: int | str | Every):
        self.when = every(f"{when} steps" if isinstance(when, int) else when)

    def _before_train(self) -> None:
        self._started = time.monotonic()

    def _next_due(self) -> int | None:
        if self.when.unit != "steps":
            return None
        return max(int(self.when.count), self.global_step + 1)

    def _before_epoch(self) -> None:
        self._look(self.epoch_num - 1)  # a resumed model may be past it

    def _trigger_step(self) -> None:
        if self.local_step < self.trainer.steps_per_epoch - 1:  # else after the epoch's own events
            self._look(0)

    def _trigger_epoch(self) -> None:
        self._look(self.epoch_num)

    def _look(self, epochs: int) -> None:
        reached = {
            "steps": self.global_step,
            "epochs": epochs,
            "seconds": time.monotonic() - self._started,
        }
        if reached[self.when.unit] >= self.when.count:
            raise StopTraining(f"{self.when} have passed")
