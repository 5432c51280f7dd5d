"""What a step minimizes, by changing which variables, with which optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from towerpack._tensorflow import tf
from towerpack.core import logger
from towerpack.tower.optimizer import Optimizer


class Objective(NamedTuple):
    """A cost to be minimized by changing `weights`; a step may have several."""

    cost: Any
    weights: Sequence[Any]
    optimizer: Optimizer


def checked_cost(cost: Any) -> Any:
    """The cost, or an error that says what the tower function must return."""
    if not tf.is_tensor(cost) or cost.shape.rank != 0 or not cost.dtype.is_floating:
        raise ValueError(
            "expected the tower function to return a scalar floating-point cost when training, "
            f"received {cost!r}. Take the mean over the batch: tf.reduce_mean(...)"
        )
    return cost


def checked_gradients(gradients: Sequence[Any], weights: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Pairs with a gradient; variables that the cost does not depend on are named and left out."""
    pairs = list(zip(gradients, weights, strict=True))
    without = [weight.name.removesuffix(":0") for gradient, weight in pairs if gradient is None]
    if len(without) == len(pairs):
        raise ValueError("the cost depends on no trainable variable, so there is nothing to train")
    if without:
        logger.warning("no gradient for %s: the cost does not depend on them", without)
    return [(gradient, weight) for gradient, weight in pairs if gradient is not None]
