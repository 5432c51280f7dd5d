"""Callbacks that end training: at a limit, without improvement, at NaN or infinity."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.callbacks.base import Callback, StopTraining, latest_scalar
from towerpack.callbacks.interval import last_step
from towerpack.callbacks.tensors import ProcessTensors
from towerpack.callbacks.user_code import RunOp
from towerpack.core.every import Every, Moment, every

HINT = (
    "To find the operation and the line of your code that caused this, call "
    "tf.debugging.enable_check_numerics() before the model is built and run again"
)


class EarlyStopping(Callback):
    """Stops training when a scalar has not improved for `patience` triggers.

    `stat` is the name of a logged scalar: place this after the callback that logs it. It improves
    by falling (with `reverse=True`, by rising) by more than `min_delta`; NaN is no improvement. A
    trigger without a new value does not count. The best value and the count survive a restart.

    >>> stop = EarlyStopping("validation_error", patience=5)
    """

    def __init__(
        self, stat: str, patience: int = 10, min_delta: float = 0.0, reverse: bool = False
    ):
        if patience < 1:
            raise ValueError(f"expected patience of at least 1, received {patience}")
        self.stat, self.patience, self.reverse = stat, patience, reverse
        self.min_delta = float(min_delta)

    def _setup_graph(self) -> None:
        self.best: float | None = None
        self.waited = 0
        self._seen = -1

    def _trigger(self) -> None:
        latest = latest_scalar(self, self.stat)
        if latest is None or latest[0] <= self._seen:
            return
        self._seen, value = latest
        worst = -math.inf if self.reverse else math.inf
        best = worst if self.best is None else self.best
        gain = value - best if self.reverse else best - value  # NaN for NaN
        if gain > self.min_delta:
            self.best, self.waited = value, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            raise StopTraining(
                f"{self.stat} has not improved on {best:.5g} in {self.waited} triggers"
            )

    def _state(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited, "seen": self._seen}

    def _restore(self, state: dict[str, Any]) -> None:
        self.best, self.waited, self._seen = state["best"], state["waited"], state["seen"]


class StopAt(Callback):
    """Stops training after a number of steps or epochs of the model, or a time of this run.

    `when` is a number of steps, or `'10000 steps'`, `'3 epochs'`, `'8 h'`. Time is checked between
    two calls of the step function. A resumed model that is past the limit stops at once.

    >>> limit = StopAt("8 h")
    """

    def __init__(self, when: int | str | Every):
        self.when = every(f"{when} steps" if isinstance(when, int) else when)

    def _before_train(self) -> None:
        self._started = time.monotonic()

    def _next_due(self) -> int | None:
        if self.when.unit != "steps":
            return None
        return max(int(self.when.count), self.global_step + 1)

    def _before_epoch(self) -> None:
        self._check(self.epoch_num - 1)  # a resumed model may be past it

    def _trigger_step(self) -> None:
        # After the last step of an epoch it stops with the epoch's own events.
        if self.local_step < self.trainer.steps_per_epoch - 1:
            self._check(0)

    def _trigger_epoch(self) -> None:
        self._check(self.epoch_num)

    def _check(self, epochs: int) -> None:
        seconds = time.monotonic() - self._started
        reached = Moment(self.global_step, epochs, seconds)
        if getattr(reached, self.when.unit) >= self.when.count:
            raise StopTraining(f"{self.when} have passed")


class CheckNumerics(RunOp):
    """Stops training and names the variables that are not finite.

    One traced function checks all variables of the store, at each trigger and, with
    `run_step=True`, after every step (which then cannot be fused). TensorFlow's own
    `tf.debugging.enable_check_numerics()`, called before the model is built, reports the operation
    and the line of code that caused it, and slows down every operation.
    """

    def __init__(self, run_as_trigger: bool = True, run_step: bool = False):
        super().__init__(
            self._check, run_before=False, run_as_trigger=run_as_trigger, run_step=run_step
        )

    def _before_train(self) -> None:
        variables = {
            name: variable
            for name, variable in self.trainer.store.variables.items()
            if variable.dtype.is_floating or variable.dtype.is_complex
        }

        def are_finite() -> dict[str, Any]:
            # `abs`, because `is_finite` does not take complex numbers.
            return {n: tf.reduce_all(tf.math.is_finite(tf.abs(v))) for n, v in variables.items()}

        self._finite = tf.function(are_finite, autograph=False).get_concrete_function()

    def _check(self) -> None:
        broken = [name for name, finite in self._finite().items() if not finite.numpy()]
        if broken:
            raise FloatingPointError(
                f"after step {self.global_step} these variables are not finite: {broken}. {HINT}"
            )


class TerminateOnNaN(ProcessTensors):
    """Stops training when one of the named tensors is not finite.

    With `run_step=True` (the default) every step is checked; otherwise the last step of each epoch,
    so that steps may be fused. The trainer itself checks the cost of every step for free and keeps
    the batch: this callback is for other tensors. Each of several ranks checks its own.

    >>> guard = TerminateOnNaN(["logits"])
    """

    chief_only = False

    def __init__(self, names: str | Sequence[str], run_step: bool = True):
        super().__init__(names, self._check)
        self.run_step = run_step

    def _next_due(self) -> int | None:
        return self.global_step + 1 if self.run_step else last_step(self.trainer)

    def _check(self, *values: Any) -> None:
        for name, value in zip(self.names, values, strict=True):
            finite = np.isfinite(np.asarray(value, np.float64))
            if not finite.all():
                raise FloatingPointError(
                    f"{name!r} is not finite in step {self.global_step}: "
                    f"{int((~finite).sum())} of {finite.size} values. {HINT}"
                )
