"""Regularization: costs of the weights themselves."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from towerpack._tensorflow import tf
from towerpack.core import logger
from towerpack.models.variables import Regularizer
from towerpack.tower import TowerContext, get_current_tower_context
from towerpack.tower.creation import current_scope


class CalledTooEarly(RuntimeError):
    """A tower created variables after `regularize_cost` was called; they are in the store now."""


def l2_regularizer(scale: float = 1.0) -> Regularizer:
    """A function of weights: `scale` times half the sum of their squares."""
    return lambda weights: scale * tf.nn.l2_loss(tf.cast(weights, tf.float32))


def l1_regularizer(scale: float = 1.0) -> Regularizer:
    """A function of weights: `scale` times the sum of their absolute values."""
    return lambda weights: scale * tf.reduce_sum(tf.abs(tf.cast(weights, tf.float32)))


def regularize_cost(regex: str, func: Callable[[Any], Any], name: str = "regularize_cost") -> Any:
    """The sum of `func(weights)` over the trainable variables whose name matches the pattern.

    The pattern may match anywhere in the name (`re.search`). Add the result to the cost yourself,
    after the last layer. If a matching variable is created after the call, a trainer builds the
    tower a second time, so the cost does not depend on the position of the call. The result is
    float32, and zero outside of training. A tower with its own variables counts only these.

        cost = loss + regularize_cost("fc.*/W", l2_regularizer(1e-4))
    """
    context = _training_context()
    if context is None:
        return tf.zeros([], tf.float32, name=name)
    own = f"{context.vs_name}/" if context.vs_name else ""

    def matching() -> list[str]:
        names = [path for path in context.store.trainable() if path.startswith(own)]
        return [path for path in names if re.search(regex, path)]

    def check_complete() -> None:
        late = [path for path in matching() if path not in chosen]
        if late and not context.probing:
            raise CalledTooEarly(
                f"regularize_cost({regex!r}) was called before these variables were made: {late}; "
                "call it after the last layer"
            )
        # Once per model, although its tower is traced many times.
        if not chosen and not late and regex not in context.store.unmatched:
            context.store.unmatched.add(regex)
            logger.warning(
                "regularize_cost: no trainable variable matches %r; the trainable variables are %s",
                regex,
                list(context.store.trainable()),
            )

    chosen = matching()
    context.at_end.append(check_complete)
    if not chosen:
        return tf.zeros([], tf.float32, name=name)
    weights = [tf.cast(context.store[path], tf.float32) for path in chosen]
    return tf.add_n([tf.cast(func(weight), tf.float32) for weight in weights], name=name)


def regularize_cost_from_collection(name: str = "regularize_cost") -> Any:
    """The sum of the costs from the `regularizer` arguments of this tower's variables.

    Add it to the cost yourself. It is zero outside of training, and without regularizers.

        Conv2D("conv0", x, 32, 3, kernel_regularizer=l2_regularizer(1e-4))
        cost = loss + regularize_cost_from_collection()
    """
    context = _training_context()
    losses = [] if context is None else list(current_scope().losses.values())
    if not losses:
        return tf.zeros([], tf.float32, name=name)
    return tf.add_n([tf.cast(loss, tf.float32) for loss in losses], name=name)


def _training_context() -> TowerContext | None:
    context = get_current_tower_context()
    if context is None:
        raise RuntimeError("the cost of weights can only be computed while a tower is being built")
    return context if context.is_training else None
