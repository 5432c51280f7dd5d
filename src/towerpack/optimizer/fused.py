"""Optimizers whose update is one kernel per variable."""

from __future__ import annotations

import re
from typing import Any

from towerpack._tensorflow import tf
from towerpack.optimizer.base import (
    GradsAndVars,
    Optimizer,
    constrain,
    current_rate,
    own_counter,
)
from towerpack.tower import VariableStore


def number(value: float, dtype: Any) -> Any:
    """A setting as an exact constant of this type; `tf.cast` would round it to float32 first."""
    constant = tf.constant(value, dtype)
    if value < 1 and tf.get_static_value(constant) == 1:
        raise ValueError(
            f"expected variables of a type that can hold {value}, received {dtype.name}, "
            "which rounds it to 1; keep variables in float32, as a trainer's "
            "precision='bfloat16' does"
        )
    return constant


class SlotOptimizer(Optimizer):
    """A base class with a learning rate, slots by name, and decoupled weight decay.

    Before each update, `weight_decay` reduces every variable whose whole name matches
    `decay_pattern` by `rate * weight_decay * variable`: by default the weights `W` of layers and
    not their biases, scales or embeddings. Sparse gradients (of embeddings) are applied exactly.
    """

    def __init__(
        self, learning_rate: Any, weight_decay: float = 0.0, decay_pattern: str = r".*/W|.*/kernel"
    ):
        if weight_decay < 0:
            raise ValueError(f"expected weight_decay >= 0, received {weight_decay}")
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.decay_pattern = re.compile(decay_pattern)

    def apply_gradients(self, grads_and_vars: GradsAndVars) -> None:
        rate = current_rate(self.learning_rate)
        doubles = any(variable.dtype == tf.float64 for _, variable in grads_and_vars)
        self._counter_type = tf.float64 if doubles else tf.float32
        self.begin_step()
        for gradient, variable in grads_and_vars:
            dtype = variable.dtype
            typed_rate = tf.cast(rate, dtype)
            name = VariableStore.current().name_of(variable)
            if self.weight_decay and self.decay_pattern.fullmatch(name):
                variable.assign_sub(typed_rate * number(self.weight_decay, dtype) * variable)
            if isinstance(gradient, tf.IndexedSlices):
                self.apply_sparse(gradient, variable, typed_rate)
            else:
                self.apply_dense(tf.cast(gradient, dtype), variable, typed_rate)
        constrain(variable for _, variable in grads_and_vars)
        self.end_step()

    def begin_step(self) -> None: ...

    def end_step(self) -> None: ...

    def apply_dense(self, gradient: Any, variable: Any, rate: Any) -> None:
        raise NotImplementedError

    def apply_sparse(self, gradient: Any, variable: Any, rate: Any) -> None:
        self.apply_dense(tf.cast(tf.convert_to_tensor(gradient), variable.dtype), variable, rate)

    def slot(self, variable: Any, suffix: str, shape: Any = None) -> Any:
        """A variable of zeros that belongs to another, named `<its name>/<suffix>`."""
        store = VariableStore.current()
        shape = variable.shape if shape is None else shape
        return store.make(
            f"{store.name_of(variable)}/{suffix}",
            lambda: tf.zeros(shape, variable.dtype),
            trainable=False,
        )

    def counter(self, name: str, initial: float) -> Any:
        """A scalar of this optimizer: float32, or float64 if one of the variables is."""
        return own_counter(self, name, initial, self._counter_type)


class SGD(SlotOptimizer):
    """Plain gradient descent."""

    def apply_dense(self, gradient: Any, variable: Any, rate: Any) -> None:
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)

    def apply_sparse(self, gradient: Any, variable: Any, rate: Any) -> None:
        values = tf.cast(gradient.values, variable.dtype)
        variable.scatter_sub(tf.IndexedSlices(rate * values, gradient.indices))


class Momentum(SlotOptimizer):
    """Gradient descent with momentum, optionally Nesterov's; slots `<name>/Momentum`."""

    def __init__(
        self, learning_rate: Any, momentum: float = 0.9, nesterov: bool = False, **options: Any
    ):
        super().__init__(learning_rate, **options)
        self.momentum, self.nesterov = momentum, nesterov

    def apply_dense(self, gradient: Any, variable: Any, rate: Any) -> None:
        tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=self.slot(variable, "Momentum").handle,
            lr=rate,
            grad=gradient,
            momentum=number(self.momentum, variable.dtype),
            use_nesterov=self.nesterov,
        )


class RMSProp(SlotOptimizer):
    """RMSProp, optionally with momentum; slots `<name>/RMSProp` and `<name>/RMSProp_1`."""

    def __init__(
        self,
        learning_rate: Any,
        decay: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        **options: Any,
    ):
        super().__init__(learning_rate, **options)
        self.decay, self.momentum, self.epsilon = decay, momentum, epsilon

    def apply_dense(self, gradient: Any, variable: Any, rate: Any) -> None:
        dtype = variable.dtype
        tf.raw_ops.ResourceApplyRMSProp(
            var=variable.handle,
            ms=self.slot(variable, "RMSProp").handle,
            mom=self.slot(variable, "RMSProp_1").handle,
            lr=rate,
            rho=number(self.decay, dtype),
            momentum=number(self.momentum, dtype),
            epsilon=number(self.epsilon, dtype),
            grad=gradient,
        )


class Adam(SlotOptimizer):
    """Adam; slots `<name>/Adam` and `<name>/Adam_1`, as in tensorpack's checkpoints."""

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        **options: Any,
    ):
        super().__init__(learning_rate, **options)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def begin_step(self) -> None:
        self._power1 = self.counter("beta1_power", self.beta1)
        self._power2 = self.counter("beta2_power", self.beta2)

    def end_step(self) -> None:
        self._power1.assign(self._power1 * self.beta1)
        self._power2.assign(self._power2 * self.beta2)

    def apply_dense(self, gradient: Any, variable: Any, rate: Any) -> None:
        dtype = variable.dtype
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self.slot(variable, "Adam").handle,
            v=self.slot(variable, "Adam_1").handle,
            beta1_power=tf.cast(self._power1, dtype),
            beta2_power=tf.cast(self._power2, dtype),
            lr=rate,
            beta1=number(self.beta1, dtype),
            beta2=number(self.beta2, dtype),
            epsilon=number(self.epsilon, dtype),
            grad=gradient,
        )


class AdamW(Adam):
    """Adam with decoupled weight decay."""

    def __init__(self, learning_rate: Any = 1e-3, weight_decay: float = 1e-2, **options: Any):
        super().__init__(learning_rate, weight_decay=weight_decay, **options)
