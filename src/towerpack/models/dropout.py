"""Dropout."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf
from towerpack.models.phase import in_training
from towerpack.models.registry import layer_register
from towerpack.tower import get_current_tower_context
from towerpack.tower.randomness import step_seed


@layer_register(use_scope=None, renamed={"is_training": "training"})
def Dropout(
    x: Any,
    keep_prob: float | None = None,
    *,
    rate: float | None = None,
    noise_shape: Any = None,
    training: bool | None = None,
) -> Any:
    """Drops elements at random while training and scales the others up.

    A number given by position is the probability to **keep** an element; `rate=` is the probability
    to drop it. Half of them by default. `training` defaults to what the tower is for. What is
    dropped depends on the model's seed and the step only, so a resumed run drops the same.
    """
    if keep_prob is not None and rate is not None:
        raise TypeError("give either keep_prob (by position) or rate=, not both")
    if rate is None:
        rate = 0.5 if keep_prob is None else 1 - keep_prob
    rate = checked_rate(rate)
    if not in_training(training) or not rate:
        return tf.identity(x)
    return _drop(x, rate, noise_shape)


@layer_register(use_scope=None)
def StochasticDepth(x: Any, *, rate: float, training: bool | None = None) -> Any:
    """Drops whole datapoints of a residual branch while training and scales the others up.

    x = x + StochasticDepth(branch, rate=0.1)
    """
    rate = checked_rate(rate)
    if not in_training(training) or not rate:
        return tf.identity(x)
    return _drop(x, rate, [tf.shape(x)[0]] + [1] * (x.shape.rank - 1))


def _drop(x: Any, rate: float, noise_shape: Any) -> Any:
    context = get_current_tower_context()
    if (
        context is None or not context.is_training
    ):  # asked for at inference: other numbers each time
        return tf.nn.dropout(x, rate=rate, noise_shape=noise_shape)
    return tf.nn.experimental.stateless_dropout(
        x, rate, seed=step_seed("dropout"), noise_shape=noise_shape, rng_alg="philox"
    )


def checked_rate(rate: float) -> float:
    if not 0 <= rate < 1:
        raise ValueError(f"expected a rate in [0, 1), received {rate}")
    return rate
