"""Dropout of elements and of whole datapoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from towerpack._tensorflow import tf
from towerpack.models.registry import layer_register
from towerpack.models.variables import in_training
from towerpack.tower import get_current_tower_context
from towerpack.tower.randomness import step_seed


@layer_register(use_scope=None)
def Dropout(
    x: Any,
    keep_prob: float | None = None,
    *,
    rate: float | None = None,
    noise_shape: Any = None,
    training: bool | None = None,
) -> Any:
    """Drops elements at random while training and scales up the others.

    A positional number is the probability to **keep** an element; `rate=` is the probability to
    drop it. The default is one half. `training` defaults to what the tower is for. Which elements
    are dropped depends only on the model's seed and the step, so a resumed run drops the same ones.
    """
    if keep_prob is not None and rate is not None:
        raise TypeError("give either keep_prob (by position) or rate=, not both")
    if rate is None:
        rate = 0.5 if keep_prob is None else 1 - keep_prob
    return _drop(x, rate, training, lambda: noise_shape)


@layer_register(use_scope=None)
def StochasticDepth(x: Any, *, rate: float, training: bool | None = None) -> Any:
    """Drops whole datapoints of a residual branch while training and scales up the others.

    x = x + StochasticDepth(branch, rate=0.1)
    """
    return _drop(x, rate, training, lambda: [tf.shape(x)[0]] + [1] * (x.shape.rank - 1))


def _drop(x: Any, rate: float, training: bool | None, noise_shape: Callable[[], Any]) -> Any:
    if not 0 <= rate < 1:
        raise ValueError(f"expected a rate in [0, 1), received {rate}")
    if not in_training(training) or not rate:
        return tf.identity(x)
    context = get_current_tower_context()
    if context is None or not context.is_training:
        # Dropout at inference, by `training=True`: other random numbers in each call.
        return tf.nn.dropout(x, rate=rate, noise_shape=noise_shape())
    return tf.nn.experimental.stateless_dropout(
        x, rate, seed=step_seed("dropout"), noise_shape=noise_shape(), rng_alg="philox"
    )
