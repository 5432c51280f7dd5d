"""Variables that a layer keeps up to date by itself, not by gradients: moving averages and such."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.models.phase import updates_state
from towerpack.tower import VariableStore

EMA_MODES = ("default", "collection", "internal", "skip")


def state_variable(name: str, shape: Sequence[int], initializer: Any) -> Any:
    """A float32 variable of the layer that is saved with the model and has no gradient.

    It is the variable itself, whatever `remap_variables` makes of those that are read.
    """
    variable = v1.get_variable(
        name,
        list(shape),
        dtype=tf.float32,
        initializer=initializer,
        trainable=False,
        collections=[v1.GraphKeys.GLOBAL_VARIABLES, v1.GraphKeys.MODEL_VARIABLES],
    )
    if hasattr(variable, "assign"):
        return variable
    return VariableStore.current()[f"{v1.get_variable_scope().name}/{name}"]


def update_state(output: Any, assignments: Sequence[tuple[Any, Any]], mode: str) -> Any:
    """The output, after arranging that (variable, new value) are assigned along with the step.

    'default' (or 'collection') assigns when the training step runs; 'internal' whenever the output
    is computed, also by someone who fetches only that; 'skip' never. In towers that do not update
    state, nothing happens.
    """
    checked_mode(mode)
    if mode == "skip" or not updates_state():
        return output
    updates = [variable.assign(value, read_value=False) for variable, value in assignments]
    if tf.executing_eagerly():
        return output
    if mode == "internal":
        with tf.control_dependencies(updates):
            return tf.identity(output)
    for update in updates:
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
    return output


def moved(variable: Any, value: Any, momentum: float) -> tuple[Any, Any]:
    """The variable with its moving average after this value."""
    return variable, variable - (1 - momentum) * (variable - tf.stop_gradient(value))


def checked_mode(mode: str) -> str:
    if mode not in EMA_MODES:
        raise ValueError(f"expected ema_update to be one of {EMA_MODES}, received {mode!r}")
    return mode
