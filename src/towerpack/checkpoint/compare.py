"""How two files of variables differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from towerpack.checkpoint.open_source import open_source
from towerpack.checkpoint.variables import load_checkpoint_vars


@dataclass(frozen=True)
class Difference:
    """One name: `kind` is 'only in A', 'only in B', 'type', 'shape' or 'values'."""

    name: str
    kind: str
    details: str


def compare_checkpoints(first: str | Path, second: str | Path) -> Iterator[Difference]:
    """The names whose values are not bit-identical, in order."""
    entries_a, entries_b = open_source(first).entries, open_source(second).entries
    values_a, values_b = load_checkpoint_vars(first), load_checkpoint_vars(second)
    for name in sorted({*entries_a, *entries_b}):
        a, b = entries_a.get(name), entries_b.get(name)
        if a is None or b is None:
            yield Difference(name, "only in B" if a is None else "only in A", str(a or b))
        elif a.shape != b.shape:
            yield Difference(name, "shape", f"{a} and {b}")
        elif a.dtype != b.dtype:
            yield Difference(name, "type", f"{a} and {b}")
        elif values_a[name].tobytes() != values_b[name].tobytes():
            yield Difference(name, "values", _distance(values_a[name], values_b[name]))


def _distance(a: np.ndarray, b: np.ndarray) -> str:
    if a.dtype == object or a.dtype.kind in "SU":
        return "other strings"
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(a.astype(np.complex128) - b.astype(np.complex128))
        largest, scale = np.max(distance), np.max(np.abs(b.astype(np.complex128)))
    changed = int(np.sum(~(distance == 0)))
    return f"{changed} of {a.size} differ, by at most {largest:.4g} (largest value {scale:.4g})"
