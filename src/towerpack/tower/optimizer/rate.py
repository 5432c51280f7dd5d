"""The learning rate: a number, a variable, a schedule of Keras, or a function of the step."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.tower.global_step import get_global_step_var
from towerpack.tower.store import VariableStore

LEARNING_RATE = "learning_rate"


def current_rate(learning_rate: Any, name: str = LEARNING_RATE) -> Any:
    """The rate of this step as a float32 tensor; called inside the traced step.

    A number, of Python or numpy, becomes the variable `learning_rate`, so that callbacks can change
    it and checkpoints keep it. Optimizers of one model share it, unless their numbers differ: then
    the further ones have `learning_rate_1` and so on.
    """
    if isinstance(learning_rate, int | float | np.generic | np.ndarray):
        value, number = _checked(learning_rate), 0
        store, free = VariableStore.current(), name
        while store.rates.setdefault(free, value) != value:
            number += 1
            free = f"{name}_{number}"
        variable = store.make(free, lambda: tf.constant(value), trainable=False)
        return variable.read_value()
    if isinstance(learning_rate, tf.Variable) or tf.is_tensor(learning_rate):
        return tf.cast(learning_rate, tf.float32)
    if callable(learning_rate):
        takes_step = bool(inspect.signature(learning_rate).parameters)
        step = get_global_step_var().read_value()
        return tf.cast(learning_rate(step) if takes_step else learning_rate(), tf.float32)
    raise TypeError(
        "expected a learning rate as a number, a tf.Variable, a schedule or a function of the "
        f"step, received {learning_rate!r}"
    )


def _checked(number: Any) -> float:
    """A number as a float; an array must have no dimension."""
    if np.ndim(number) or not math.isfinite(number):
        raise ValueError(f"expected a finite number as learning rate, received {number!r}")
    return float(number)
