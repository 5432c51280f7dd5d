"""Scaling the cost, so that small gradients are not lost in float16."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from towerpack._tensorflow import tf
from towerpack.tower import VariableStore
from towerpack.tower.gradproc import scaled

FIRST_SCALE = 2.0**15
GROWTH_STEPS = 2000  # without overflow, after which a larger scale is tried: as others do


class LossScale:
    """Gradients are of the cost times a scale, and divided by it again.

    `scale` is a number, or 'dynamic': then a step whose gradients overflow is left out and halves
    the scale, and 2000 good steps in a row double it. Scales are powers of two, so that scaling
    changes no digit. The scale is saved with the model.
    """

    def __init__(self, store: VariableStore, scale: float | str):
        if scale != "dynamic" and not (isinstance(scale, int | float) and scale > 0):
            raise ValueError(f"expected loss_scale to be positive or 'dynamic', received {scale!r}")
        self.dynamic = scale == "dynamic"
        first = FIRST_SCALE if self.dynamic else float(scale)
        self.scale = store.make("loss_scale", lambda: tf.constant(first), trainable=False)
        self.good_steps = store.make(
            "loss_scale/good_steps", lambda: tf.zeros([], tf.int32), trainable=False
        )

    def factor(self, dtype: Any) -> Any:
        """What the gradient of the cost begins with."""
        return tf.cast(self.scale.read_value(), dtype)

    def unscaled(self, gradients: Any) -> Any:
        inverse = 1.0 / self.scale.read_value()
        return tf.nest.map_structure(lambda gradient: scaled(gradient, inverse), gradients)

    def apply(self, gradients: Sequence[Any], update: Callable[[], None]) -> None:
        """Adds to the graph: `update`, unless a gradient has overflowed."""
        if not self.dynamic:
            update()
            return
        values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in values])
        tf.cond(finite, lambda: self._good(update), self._overflow)

    def _good(self, update: Callable[[], None]) -> Any:
        update()
        grown = self.good_steps + 1 >= GROWTH_STEPS
        self.good_steps.assign(tf.where(grown, 0, self.good_steps + 1))
        self.scale.assign(tf.where(grown, self.scale * 2, self.scale))
        return tf.constant(True)

    def _overflow(self) -> Any:
        self.good_steps.assign(0)
        self.scale.assign(tf.maximum(self.scale / 2, 1.0))
        return tf.constant(False)
