"""The number of steps done, as a variable of the model."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf
from towerpack.tower.store import VariableStore

GLOBAL_STEP = "global_step"


def get_global_step_var() -> Any:
    """The variable that counts training steps: saved with the model, the same for whoever asks.

    To be called where a model is built: in a tower function or in `optimizer()`.
    """
    return VariableStore.current().make(
        GLOBAL_STEP, lambda: tf.zeros([], tf.int64), trainable=False
    )


def get_global_step_value(store: VariableStore) -> int:
    """How many steps a model has been trained, outside of any trace."""
    return int(store[GLOBAL_STEP].numpy())
