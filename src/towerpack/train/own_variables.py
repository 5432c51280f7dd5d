"""The variables that a trainer with a graph of its own keeps in its attributes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.tower import VariableStore

keras = tf.keras
KERAS_OBJECTS = (keras.layers.Layer, keras.optimizers.Optimizer, keras.metrics.Metric)


def adopt_attributes(store: VariableStore, owner: Any) -> list[str]:
    """Adds the variables in the attributes of `owner` to the store; returns the new names.

    Attributes are variables, Keras layers, models, optimizers, metrics and seed generators,
    `tf.Module`s, optimizers of `tf.compat.v1.train`, and lists and dicts of these. A variable is
    named after its attribute: `model/dense/kernel`, `optimizer/learning_rate`. `store.unbuilt`
    lists the Keras objects that have not made their variables yet.
    """
    before, search = set(store.variables), _Search()
    for attribute, value in vars(owner).items():
        for name, variable in search.variables_in(value, attribute):
            store.adopt(name, variable)
    store.unbuilt = search.unbuilt
    return [name for name in store.variables if name not in before]


class _Search:
    def __init__(self) -> None:
        self.unbuilt: list[str] = []
        self._seen: dict[int, Any] = {}  # a module may refer to the one that it is part of

    def variables_in(self, value: Any, name: str) -> Iterator[tuple[str, Any]]:
        """The variables in any object, each with its name."""
        if isinstance(value, tf.Variable):
            yield name, value
        elif isinstance(value, keras.Variable):
            yield name, value.value
        elif isinstance(value, keras.random.SeedGenerator):
            yield f"{name}/state", value.state.value
        elif isinstance(value, v1.train.Optimizer):
            for variable in value.variables():
                yield f"{name}/{variable.name.removesuffix(':0')}", variable
        elif isinstance(value, KERAS_OBJECTS):
            yield from self._of_keras(value, name)
        elif isinstance(value, tf.Module | Mapping | list | tuple) and id(value) not in self._seen:
            self._seen[id(value)] = value
            for key, part in _parts(value):
                yield from self.variables_in(part, f"{name}/{key}")

    def _of_keras(self, value: Any, name: str) -> Iterator[tuple[str, Any]]:
        if not getattr(value, "built", True):
            self.unbuilt.append(f"{name} ({type(value).__name__})")
        for variable in value.variables:
            yield f"{name}/{variable.path.removeprefix(f'{value.name}/')}", variable.value
        if getattr(value, "optimizer", None) is not None:  # of a compiled model
            yield from self.variables_in(value.optimizer, f"{name}/optimizer")


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, tf.Module):
        # Attributes of this kind are TensorFlow's own list of the others.
        return [(k, v) for k, v in vars(value).items() if not k.startswith("_self_")]
    if isinstance(value, Mapping):
        return value.items()
    return [(k, v) for k, v in enumerate(value) if not isinstance(v, int | float | str)]
