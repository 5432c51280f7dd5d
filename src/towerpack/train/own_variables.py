"""The variables that a trainer with a graph of its own keeps in its attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.tower import VariableStore

keras = tf.keras
KERAS_OBJECTS = (keras.layers.Layer, keras.optimizers.Optimizer)


def adopt_attributes(store: VariableStore, owner: Any) -> list[str]:
    """Adds the variables in the attributes of `owner` to the store; returns the new names.

    Attributes are variables, Keras layers, models and optimizers, `tf.Module`s, optimizers of
    `tf.compat.v1.train`, and lists and dicts of these. A variable is named after its attribute:
    `model/dense/kernel`, `optimizer/learning_rate`. `store.unbuilt` lists the Keras objects that
    have not made their variables yet.
    """
    before = set(store.variables)
    store.unbuilt = []
    for attribute, value in vars(owner).items():
        for name, variable in _variables_in(value, attribute, store.unbuilt):
            store.adopt(name, variable)
    return [name for name in store.variables if name not in before]


def _variables_in(value: Any, name: str, unbuilt: list[str]) -> Iterator[tuple[str, Any]]:
    parts: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, tf.Variable):
        yield name, value
    elif isinstance(value, keras.Variable):
        yield name, value.value
    elif isinstance(value, KERAS_OBJECTS):
        if not value.built:
            unbuilt.append(f"{name} ({type(value).__name__})")
        for variable in value.variables:
            path = variable.path.removeprefix(f"{value.name}/")
            yield f"{name}/{path}", variable.value
        if getattr(value, "optimizer", None) is not None:  # of a compiled model
            parts = iter([("optimizer", value.optimizer)])
    elif isinstance(value, v1.train.Optimizer):
        for variable in value.variables():
            yield f"{name}/{variable.name.removesuffix(':0')}", variable
    elif isinstance(value, tf.Module):
        # Attributes of this kind are TensorFlow's own list of the others.
        parts = ((k, v) for k, v in vars(value).items() if not k.startswith("_self_"))
    elif isinstance(value, Mapping):
        parts = iter(value.items())
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    for key, part in parts:
        yield from _variables_in(part, f"{name}/{key}", unbuilt)
