"""Numbers that are none: NaN and infinity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.callbacks.base import Callback
from towerpack.callbacks.epoch_end import EpochEnd

HINT = (
    "To see the operation and the line of your code that made the first of them, call "
    "tf.debugging.enable_check_numerics() before the model is built and run again"
)


class CheckNumerics(Callback):
    """Stops training with the names of the variables that are not finite.

    All variables of the store are looked at by one traced function, at each trigger and, with
    `run_step=True`, after every step (which then cannot be fused). TensorFlow's own
    `tf.debugging.enable_check_numerics()`, called before the model is built, names the operation
    and the line of code that made it, at a cost in every operation.
    """

    def __init__(self, run_as_trigger: bool = True, run_step: bool = False):
        self.run_as_trigger, self.run_step = run_as_trigger, run_step

    def _before_train(self) -> None:
        self._variables = {
            name: variable
            for name, variable in self.trainer.store.variables.items()
            if variable.dtype.is_floating or variable.dtype.is_complex
        }
        variables = list(self._variables.values())
        self._finite = tf.function(
            lambda: [tf.reduce_all(tf.math.is_finite(_real(v))) for v in variables],
            autograph=False,
        ).get_concrete_function()

    def _next_due(self) -> int | None:
        return self.global_step + 1 if self.run_step else None

    def _trigger_step(self) -> None:
        if self.run_step:
            self._check()

    def _trigger(self) -> None:
        if self.run_as_trigger:
            self._check()

    def _check(self) -> None:
        flags = zip(self._variables, self._finite(), strict=True)
        broken = [name for name, finite in flags if not finite.numpy()]
        if broken:
            raise FloatingPointError(
                f"after step {self.global_step} these variables are not finite: {broken}. {HINT}"
            )


class TerminateOnNaN(Callback):
    """Stops training when one of the named tensors is not finite.

    With `run_step=True` (the default) in the very step; otherwise looked at with the last step of
    each epoch, so that steps may be fused. The trainer itself watches the cost in every step, at no
    cost, and keeps the batch: this is for other tensors.

    >>> guard = TerminateOnNaN(["logits"])
    """

    def __init__(self, names: str | Sequence[str], run_step: bool = True):
        self.names = [names] if isinstance(names, str) else list(names)
        if not self.names:
            raise ValueError("expected the name of at least one tensor, received none")
        self.run_step = run_step
        self._end = EpochEnd()

    def _next_due(self) -> int | None:
        return self.global_step + 1 if self.run_step else self._end.step(self.trainer)

    def _before_run(self) -> Sequence[str] | None:
        return self.names

    def _after_run(self, values: list[Any] | None) -> None:
        for name, value in zip(self.names, values or [], strict=True):
            finite = np.isfinite(np.asarray(value, np.float64))
            if not finite.all():
                raise FloatingPointError(
                    f"{name!r} is not finite in step {self.global_step}: "
                    f"{int((~finite).sum())} of {finite.size} values. {HINT}"
                )


def _real(variable: Any) -> Any:
    value = variable.read_value()
    return tf.abs(value) if value.dtype.is_complex else value
