"""Dropout."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf
from towerpack.models.registry import layer_register
from towerpack.tower import get_current_tower_context


@layer_register(use_scope=None, renamed={"is_training": "training"})
def Dropout(
    x: Any,
    keep_prob: float | None = None,
    *,
    rate: float | None = None,
    training: bool | None = None,
) -> Any:
    """Drops elements at random while training and scales the others up.

    A number given by position is the probability to **keep** an element; `rate=` is the probability
    to drop it. Half of them by default. `training` defaults to what the tower is for.
    """
    if keep_prob is not None and rate is not None:
        raise TypeError("give either keep_prob (by position) or rate=, not both")
    if rate is None:
        rate = 0.5 if keep_prob is None else 1 - keep_prob
    if not 0 <= rate < 1:
        raise ValueError(f"expected a rate in [0, 1), received {rate}")
    if training is None:
        context = get_current_tower_context()
        training = bool(context and context.is_training)
    return tf.nn.dropout(x, rate=rate) if training and rate else tf.identity(x)
