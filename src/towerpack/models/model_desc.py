"""A model as a class: its inputs, its tower function and its optimizer."""

from __future__ import annotations

import functools
from typing import Any

from towerpack.tower import TowerFunc, get_current_tower_context
from towerpack.tower.tower_func import checked_signature


class ModelDescBase:
    """A model without an optimizer: `inputs()` and `build_graph(*inputs)`.

    `build_graph` is the tower function: it builds one replica from the input tensors.
    """

    def inputs(self) -> list[Any]:
        """The inputs, a list of `tf.TensorSpec` with names."""
        raise NotImplementedError(f"{type(self).__name__} must define inputs()")

    def build_graph(self, *args: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define build_graph()")

    @functools.cached_property
    def input_signature(self) -> list[Any]:
        return checked_signature(self.inputs())

    def get_input_signature(self) -> list[Any]:
        return self.input_signature

    @property
    def input_names(self) -> list[str]:
        return [spec.name for spec in self.input_signature]

    @property
    def training(self) -> bool:
        """Whether the tower being built is for training."""
        context = get_current_tower_context()
        if context is None:
            raise RuntimeError("`training` is only known while a tower is being built")
        return context.is_training

    def tower_func(self) -> TowerFunc:
        return TowerFunc(self.build_graph, self.input_signature)


class ModelDesc(ModelDescBase):
    """A model with one cost and one optimizer.

    In training `build_graph` returns the scalar cost; in inference its result is not used.
    `optimizer()` is called once and returns an optimizer of Keras or of `tf.compat.v1.train`.
    """

    def optimizer(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define optimizer()")

    @functools.cached_property
    def _optimizer(self) -> Any:
        return self.optimizer()

    def get_optimizer(self) -> Any:
        """The optimizer, created by the first call."""
        return self._optimizer
