"""Optimizers of Keras and of `tf.compat.v1.train` behind the interface of `Optimizer`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.core import logger
from towerpack.optimizer.base import GradsAndVars, Optimizer, constrain
from towerpack.tower import VariableStore
from towerpack.tower.gradproc import scaled


def as_optimizer(optimizer: Any) -> Optimizer:
    """Any optimizer of towerpack, Keras or `tf.compat.v1.train` as an `Optimizer`."""
    if isinstance(optimizer, Optimizer):
        return optimizer
    if isinstance(optimizer, v1.train.Optimizer):
        return V1Optimizer(optimizer)
    if isinstance(optimizer, tf.keras.optimizers.Optimizer):
        return KerasOptimizer(optimizer)
    raise TypeError(
        "expected an optimizer of towerpack, tf.keras.optimizers or tf.compat.v1.train, received "
        f"{optimizer!r} ({type(optimizer).__name__})"
    )


class V1Optimizer(Optimizer):
    """An optimizer of `tf.compat.v1.train`: one fused kernel per variable, old slot names."""

    def __init__(self, optimizer: Any):
        self.optimizer = optimizer
        self._prepared: set[int] = set()
        self._made: list[Any] = []

    def apply_gradients(self, grads_and_vars: GradsAndVars) -> None:
        with VariableStore.current().aside():
            self._make_slots([variable for _, variable in grads_and_vars])
            self.optimizer.apply_gradients(list(grads_and_vars))
            # TensorFlow applies its own constraints but does not know those of Keras.
            constrain(v for _, v in grads_and_vars if v.constraint is None)

    def _make_slots(self, variables: Sequence[Any]) -> None:
        """Creates the slots in a small trace of their own, which is never run.

        If they were created in the trace of the step, TensorFlow would trace the whole step twice.
        In a branch or loop of the step they could not be created at all.
        """
        if self._prepared.issuperset(id(variable) for variable in variables):
            return
        self._prepared.update(id(variable) for variable in variables)

        def apply() -> None:
            self.optimizer.apply_gradients([(tf.zeros_like(v), v) for v in variables])

        with tf.init_scope():
            traced = tf.function(apply, autograph=False).get_concrete_function()
        self._made += traced.variables

    def take_in_variables(self, store: VariableStore) -> None:
        """Adds the slots as `<variable>/<optimizer>`, then `_1`, in the order of their creation.

        TensorFlow gives the slots of a second model in the same process higher numbers. The names
        in a checkpoint must not depend on that.
        """
        names = self.optimizer.get_slot_names()
        for weight_name, weight in list(store.trainable().items()):
            slots = [self.optimizer.get_slot(weight, name) for name in names]
            made = sorted((slot for slot in slots if slot is not None), key=_number_at_the_end)
            for number, slot in enumerate(made):
                suffix = f"_{number}" if number else ""
                store.adopt(f"{weight_name}/{self.optimizer.get_name()}{suffix}", slot)
        # `optimizer.variables()` leaves out those that it does not keep for each weight, such as
        # Adam's powers of beta, if several towers were built.
        store.adopt_all(self._made)


def _number_at_the_end(variable: Any) -> int:
    found = re.search(r"_(\d+):0$", variable.name)
    return int(found[1]) if found else 0


class KerasOptimizer(Optimizer):
    """An optimizer of Keras 3."""

    def __init__(self, optimizer: Any):
        self.optimizer = optimizer

    def apply_gradients(self, grads_and_vars: GradsAndVars) -> None:
        gradients, variables = zip(*grads_and_vars, strict=True)
        scale = self.loss_scale(variables)
        if scale is not None:  # Keras divides by it
            gradients = tuple(scaled(gradient, scale) for gradient in gradients)
        # Variables are passed: the optimizer may have been built with more, in another order.
        self.optimizer.apply(list(gradients), self._built_with(variables))

    def loss_scale(self, variables: Sequence[Any]) -> Any:
        self._built_with(variables)
        scale = self.optimizer.scale_loss(1.0)
        return scale if tf.is_tensor(scale) or scale != 1.0 else None

    def _built_with(self, variables: Sequence[Any]) -> list[Any]:
        """The Keras variables of these variables; the optimizer has slots for them afterwards."""
        store = VariableStore.current()
        # Outside of the trace, so that the slots are real variables, and apart from the store,
        # because `take_in_variables` adds them under the names that Keras gives them.
        with tf.init_scope(), store.aside():
            keras_variables = [store.keras.variable_of(v, store.name_of(v)) for v in variables]
            if not self.optimizer.built:
                self.optimizer.build(keras_variables)
        return keras_variables

    def finalize(self) -> None:
        """Replaces the weights by their moving averages if `use_ema` is set, as `fit` does."""
        inner = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        if inner.use_ema:
            # Keras pairs its averages with the variables in the order in which it was built.
            self.optimizer.finalize_variable_values(inner._trainable_variables)
            logger.info("the weights are now their moving averages (use_ema of the optimizer)")

    def take_in_variables(self, store: VariableStore) -> None:
        """Adds the variables under names that do not depend on how many optimizers came before.

        Keras calls the second Adam of a process `adam_1`.
        """
        name = self.optimizer.name
        numbered = re.fullmatch(r"(.+)_\d+", name)
        first = numbered[1] if numbered and numbered[1] == _snake_case(self.optimizer) else name
        # Some optimizers give several of their variables the same name.
        counts: Counter[str] = Counter()
        paths = {}
        for variable in self.optimizer.variables:
            path = variable.path.removeprefix(f"{name}/")
            counts[path] += 1
            paths[path if counts[path] == 1 else f"{path}_{counts[path] - 1}"] = variable.value
        scope, number = first, 0
        # Another optimizer of this model may have the name, as in a GAN with two networks.
        while any(store.variables.get(f"{scope}/{p}", v) is not v for p, v in paths.items()):
            number += 1
            scope = f"{first}_{number}"
        for path, value in paths.items():
            if store.has(value):  # created with the optimizer, in an open store
                store.rename(value, f"{scope}/{path}")
            else:
                store.adopt(f"{scope}/{path}", value)


def _snake_case(optimizer: Any) -> str:
    """The name that Keras gives the first optimizer of this class."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", type(optimizer).__name__).lower()
