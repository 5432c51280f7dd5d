"""One way to apply gradients, whichever library the optimizer comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.tower.store import VariableStore


def checked_optimizer(optimizer: Any) -> Any:
    """The optimizer, or an error that says what can be one."""
    if isinstance(optimizer, v1.train.Optimizer | tf.keras.optimizers.Optimizer):
        return optimizer
    raise TypeError(
        "expected an optimizer of tf.keras.optimizers or tf.compat.v1.train, received "
        f"{optimizer!r} ({type(optimizer).__name__})"
    )


def apply_gradients(optimizer: Any, gradients: Sequence[tuple[Any, Any]]) -> None:
    """Applies (gradient, variable) pairs; called inside the traced step."""
    if isinstance(optimizer, v1.train.Optimizer):
        optimizer.apply_gradients(gradients)
        return
    if not optimizer.built:
        # Outside of the trace, so that the slots are real variables.
        with tf.init_scope():
            optimizer.build([variable for _, variable in gradients])
    optimizer.apply([gradient for gradient, _ in gradients])


def take_in_slots(optimizer: Any, store: VariableStore) -> None:
    """Puts the optimizer's own variables into the store, so that they are saved with the model."""
    if isinstance(optimizer, v1.train.Optimizer):
        for variable in optimizer.variables():
            store.add(variable.name.removesuffix(":0"), variable)
        return
    for number, variable in enumerate(optimizer.variables):
        name = variable.path if variable.path not in store else f"{variable.path}_{number}"
        store.add(name, variable.value)
