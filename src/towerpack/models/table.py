"""The table of a model's layers: shapes, numbers of parameters, and what is frozen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from towerpack.core import logger
from towerpack.tower import VariableStore

REASONS_SHOWN = 2  # per layer, for frozen variables


_HEAD = ("layer", "kind", "input", "output", "parameters", "frozen")
_logging = True


def _parameters(store: VariableStore, layer: str) -> set[str]:
    names = store.layers[layer].variables
    if names is None:
        names = {name for name in store.variables if name.startswith(f"{layer}/")}
    return {*names} & (store.trainable().keys() | store.frozen().keys())


def _counted(store: VariableStore, names: Iterable[str]) -> tuple[int, str]:
    """The number of parameters, and a text with the number of frozen ones and the reasons."""
    sizes = {name: int(store[name].shape.num_elements()) for name in names}
    total, reasons = sum(sizes.values()), Counter[str]()
    for name, why in store.frozen().items():
        reasons[why] += sizes.get(name, 0)
    reasons = +reasons
    if not reasons:
        return total, ""
    frozen = reasons.total()
    amount = "all" if frozen == total else f"{frozen:,}"
    more = len(reasons) - REASONS_SHOWN
    shown = [*list(reasons)[:REASONS_SHOWN], *([f"{more} more"] if more > 0 else [])]
    return total, f"{amount}: {', '.join(shown)}"


def layer_table(store: VariableStore) -> str:
    """The table as text; empty if the tower called no layers with names.

    A row is a named layer of towerpack, or a Keras layer or model that the tower called, in the
    order of the calls. `parameters` is the number of trained and frozen parameters, including those
    of inner layers. `frozen` says how many of them are frozen, and why.
    """
    if not store.layers:
        return ""
    owned = {name: _parameters(store, name) for name in store.layers}
    cells: list[tuple[str, ...]] = [_HEAD]
    for name, call in store.layers.items():
        count, frozen = _counted(store, owned[name])
        cells.append((name, call.kind, call.input, call.output, f"{count:,}", frozen))
    # A variable that several layers share is counted once.
    total, frozen = _counted(store, set().union(*owned.values()))
    cells.append(("total", "", "", "", f"{total:,}", frozen.partition(":")[0]))
    if not frozen:
        cells = [row[:-1] for row in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        texts = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        texts[4] = row[4].rjust(widths[4])
        lines.append("  ".join(texts).rstrip())
    return "\n".join(lines)


def log_layer_table(store: VariableStore) -> None:
    """Logs the table of the model's layers, unless `disable_layer_logging` was called."""
    table = layer_table(store)
    if table and _logging:
        logger.info("Layers:\n%s", table)


def disable_layer_logging() -> None:
    """Stops this process from logging tables of layers."""
    global _logging
    _logging = False
