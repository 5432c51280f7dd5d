"""The layers of a model as one table: shapes and numbers of parameters."""

from __future__ import annotations

import weakref
from typing import NamedTuple

from towerpack.core import logger
from towerpack.tower import VariableStore


class LayerRow(NamedTuple):
    """One named layer; `parameters` counts its trainable ones, those of inner layers included."""

    name: str
    kind: str
    input: str
    output: str
    parameters: int


_HEAD = ("layer", "kind", "input", "output", "parameters")
_rows: weakref.WeakKeyDictionary[VariableStore, dict[str, LayerRow]] = weakref.WeakKeyDictionary()
_logging = True


def record_layer(
    store: VariableStore, name: str, kind: str, input_shape: str, output_shape: str
) -> None:
    """Adds a row to the model's table; a layer that is there already stays as it is."""
    rows = _rows.setdefault(store, {})
    if name not in rows:
        parameters = sum(
            variable.shape.num_elements()
            for path, variable in store.trainable().items()
            if path.startswith(f"{name}/")
        )
        rows[name] = LayerRow(name, kind, input_shape, output_shape, parameters)


def layer_rows(store: VariableStore) -> list[LayerRow]:
    """The layers of the model with these variables, in the order in which they were built."""
    return list(_rows.get(store, {}).values())


def layer_table(store: VariableStore) -> str:
    """The table as text; empty if no layer with a name was built."""
    rows = [
        (row.name, row.kind, row.input, row.output, f"{row.parameters:,}")
        for row in layer_rows(store)
    ]
    if not rows:
        return ""
    total = sum(row.parameters for row in layer_rows(store))
    cells = [_HEAD, *rows, ("total", "", "", "", f"{total:,}")]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        left = [text.ljust(width) for text, width in zip(row[:-1], widths, strict=False)]
        lines.append("  ".join([*left, row[-1].rjust(widths[-1])]))
    return "\n".join(lines)


def log_layer_table(store: VariableStore) -> None:
    """Logs the table of the model's layers, unless `disable_layer_logging` was called."""
    table = layer_table(store)
    if table and _logging:
        logger.info("Layers:\n%s", table)


def disable_layer_logging() -> None:
    """From now on, in this process, no table of layers is logged."""
    global _logging
    _logging = False
