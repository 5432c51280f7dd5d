"""Optimizers without a kernel of their own: Lion, LAMB, Adafactor."""

from __future__ import annotations

from typing import Any

from towerpack._tensorflow import tf
from towerpack.optimizer.fused import SlotOptimizer


class Lion(SlotOptimizer):
    """Steps by the sign of an interpolated momentum; half the memory of Adam."""

    def __init__(
        self, learning_rate: Any = 1e-4, beta1: float = 0.9, beta2: float = 0.99, **options: Any
    ):
        super().__init__(learning_rate, **options)
        self.beta1, self.beta2 = beta1, beta2

    def apply_dense(self, gradient: Any, variable: Any, rate: Any) -> None:
        momentum = self.slot(variable, "Lion")
        step = tf.sign(self.beta1 * momentum + (1 - self.beta1) * gradient)
        variable.assign_sub(rate * step)
        momentum.assign(self.beta2 * momentum + (1 - self.beta2) * gradient)


class LAMB(SlotOptimizer):
    """Adam's direction, scaled per layer to the norm of the weights; for very large batches."""

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-7,
        **options: Any,
    ):
        super().__init__(learning_rate, **options)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def begin_step(self) -> None:
        self._steps = self.counter("LAMB/steps", 0.0).assign_add(1)

    def apply_dense(self, gradient: Any, variable: Any, rate: Any) -> None:
        first, second = self.slot(variable, "LAMB"), self.slot(variable, "LAMB_1")
        mean = first.assign(self.beta1 * first + (1 - self.beta1) * gradient)
        square = second.assign(self.beta2 * second + (1 - self.beta2) * gradient**2)
        unbiased1 = tf.cast(1 - self.beta1**self._steps, variable.dtype)
        unbiased2 = tf.cast(1 - self.beta2**self._steps, variable.dtype)
        step = mean / unbiased1 / (tf.sqrt(square / unbiased2) + self.epsilon)
        weight_norm, step_norm = tf.norm(variable), tf.norm(step)
        both = tf.logical_and(weight_norm > 0, step_norm > 0)
        trust = tf.where(both, tf.math.divide_no_nan(weight_norm, step_norm), 1)
        variable.assign_sub(rate * trust * step)


class Adafactor(SlotOptimizer):
    """Keeps second moments per row and column instead of per weight, which saves memory.

    `relative_step=True` limits the rate to 1 / sqrt(step).
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        decay: float = -0.8,
        epsilon1: float = 1e-30,
        epsilon2: float = 1e-3,
        clip: float = 1.0,
        relative_step: bool = True,
        **options: Any,
    ):
        super().__init__(learning_rate, **options)
        self.decay, self.epsilon1, self.epsilon2 = decay, epsilon1, epsilon2
        self.clip, self.relative_step = clip, relative_step

    def begin_step(self) -> None:
        self._steps = self.counter("Adafactor/steps", 0.0).assign_add(1)

    def apply_dense(self, gradient: Any, variable: Any, rate: Any) -> None:
        dtype = variable.dtype
        beta = tf.cast(1 - self._steps**self.decay, dtype)
        if self.relative_step:
            rate = tf.minimum(rate, tf.cast(tf.math.rsqrt(self._steps), dtype))
        rate *= tf.maximum(tf.cast(self.epsilon2, dtype), _rms(variable))
        square = gradient**2 + tf.cast(self.epsilon1, dtype)
        step = self._normalized(gradient, variable, square, beta)
        variable.assign_sub(rate * step / tf.maximum(tf.cast(1, dtype), _rms(step) / self.clip))

    def _normalized(self, gradient: Any, variable: Any, square: Any, beta: Any) -> Any:
        """The gradient divided by the root of its second moment."""
        shape = variable.shape
        if shape.rank < 2:
            whole = self.slot(variable, "Adafactor")
            return gradient * tf.math.rsqrt(whole.assign(beta * whole + (1 - beta) * square))
        rows = self.slot(variable, "Adafactor", shape[:-1])
        columns = self.slot(variable, "Adafactor_1", shape[:-2] + shape[-1:])
        row = rows.assign(beta * rows + (1 - beta) * tf.reduce_mean(square, -1))
        column = columns.assign(beta * columns + (1 - beta) * tf.reduce_mean(square, -2))
        # One root after the other: if a whole row and a whole column of the gradient are zero, as
        # with dead ReLUs, the product of their moments (1e-30 each) is zero in float32.
        mean = tf.sqrt(tf.reduce_mean(row, -1, keepdims=True))
        step = gradient * tf.math.rsqrt(row)[..., None] * mean[..., None]
        return step * tf.math.rsqrt(column)[..., None, :]


def _rms(x: Any) -> Any:
    return tf.sqrt(tf.reduce_mean(tf.square(x)))
