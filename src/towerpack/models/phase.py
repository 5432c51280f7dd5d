"""Whether a layer is being built for training."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf
from towerpack.tower import get_current_tower_context


def in_training(training: Any = None) -> bool:
    """The layer's own argument if it was given, else what the tower is for."""
    if tf.is_tensor(training):
        raise TypeError(
            "expected True, False or None as training, received a tensor; training and inference "
            "are two traces of the tower, so it is known while a tower is built"
        )
    if training is not None:
        return bool(training)
    context = get_current_tower_context()
    return bool(context and context.is_training)


def updates_state() -> bool:
    """Whether a layer in this tower updates its own state (moving averages and such).

    Of the towers that share variables only the first does; one with its own always does.
    """
    context = get_current_tower_context()
    return context is not None and context.is_training and context.updates_state


def replicas() -> int:
    """How many replicas of `tf.distribute` compute this tower together; 1 without a strategy."""
    replica_context = tf.distribute.get_replica_context()
    return int(replica_context.num_replicas_in_sync) if replica_context else 1
