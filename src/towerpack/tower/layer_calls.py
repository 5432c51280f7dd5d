"""The layers that the first training tower calls, for the table of layers."""

from __future__ import annotations

from typing import Any, NamedTuple

from towerpack._tensorflow import tf, v1
from towerpack.tower.store import VariableStore


class LayerCall(NamedTuple):
    """A layer of towerpack or Keras; the store has them by name, in the order of their calls."""

    kind: str
    input: str
    output: str
    variables: frozenset[str] | None = None  # None: those whose names begin with the layer's


def record_keras_layer(store: VariableStore, layer: Any, args: Any, outputs: Any) -> None:
    """Records a Keras layer or model, unless all its variables are in recorded ones already."""
    owned = [v for v in layer.variables if isinstance(v.value, tf.Variable)]
    paths = {store.name_of(v.value): v.path for v in owned}
    name = f"{_scope(paths)}/{layer.name}".lstrip("/")
    known = {variable for call in store.layers.values() for variable in call.variables or ()}
    if known.issuperset(paths) if paths else name in store.layers:
        return
    unique, number = name, 1
    while unique in store.layers:
        unique, number = f"{name}_{number}", number + 1
    first = args[0] if len(args) == 1 else list(args)
    store.layers[unique] = LayerCall(
        type(layer).__name__, shape_text(first), shape_text(outputs), frozenset(paths)
    )


def _scope(paths: dict[str, str]) -> str:
    """The variable scope of a layer: what its variables have before the paths that Keras gives."""
    for name, path in paths.items():
        return name.removesuffix(path).rstrip("/") if name.endswith(path) else ""
    return v1.get_variable_scope().name


def shape_text(x: Any) -> str:
    """The shape of a tensor, or those of several, as the table shows it."""
    if isinstance(x, list | tuple):
        return "[" + ", ".join(map(shape_text, x)) + "]"
    return str(x.shape.as_list()) if tf.is_tensor(x) and x.shape.rank is not None else "[?]"
