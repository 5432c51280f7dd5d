"""What an optimizer is, its learning rate, and its counters."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.tower import VariableStore, get_global_step_var

GradsAndVars = Sequence[tuple[Any, Any]]
LEARNING_RATE = "learning_rate"


class Optimizer:
    """Applies gradients. Called inside the traced step, with the model's variable store open.

    Its own variables (moments, counters) are created in the store, so that they are saved with the
    model and found again in another trace.
    """

    def apply_gradients(self, grads_and_vars: GradsAndVars) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define apply_gradients()")

    def loss_scale(self, variables: Sequence[Any]) -> Any:
        """The factor by which the cost is scaled for gradients of `variables`; None without one.

        The trainer multiplies the cost by it and divides the gradients by it again, so that
        `apply_gradients` and all wrappers receive gradients of the cost itself.
        """
        return None

    def finalize(self) -> None:
        """Sets the weights to their final values, after the last step."""

    def take_in_variables(self, store: VariableStore) -> None:
        """Adds variables that were not created in the store to it, once the step is built."""


def current_rate(learning_rate: Any, name: str = LEARNING_RATE) -> Any:
    """The rate of this step as a float32 tensor; called inside the traced step.

    A Python or numpy number becomes the variable `learning_rate`, so that callbacks can change it
    and checkpoints keep it. Optimizers of one model share it unless their numbers differ: then
    further ones have `learning_rate_1` and so on.
    """
    if isinstance(learning_rate, int | float | np.generic | np.ndarray):
        if np.ndim(learning_rate) or not math.isfinite(learning_rate):
            raise ValueError(
                f"expected a finite number as learning rate, received {learning_rate!r}"
            )
        value, number = float(learning_rate), 0
        store, free = VariableStore.current(), name
        while store.rates.setdefault(free, value) != value:
            number += 1
            free = f"{name}_{number}"
        return store.make(free, lambda: tf.constant(value), trainable=False).read_value()
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


def own_counter(owner: Any, name: str, initial: float, dtype: Any = tf.float32) -> Any:
    """The scalar of this name that belongs to the object `owner`, in the open store.

    The first owner gets the name itself. Further owners, such as the optimizer of a second network,
    get a number appended to it, in the order in which they ask. So each counts its own steps.
    """
    store = VariableStore.current()
    owned: dict[tuple[VariableStore, str], Any] = owner.__dict__.setdefault("_own_counters", {})
    if (store, name) not in owned:
        free, number = name, 0
        while free in store:
            number += 1
            free = f"{name}_{number}"
        owned[store, name] = store.make(free, lambda: tf.constant(initial, dtype), trainable=False)
    return owned[store, name]


def constrain(variables: Iterable[Any]) -> None:
    """Applies the constraints of variables that were updated."""
    store = VariableStore.current()
    for variable in variables:
        constraint = store.keras.constraint_of(variable)
        if constraint is not None:
            variable.assign(constraint(tf.convert_to_tensor(variable)))
