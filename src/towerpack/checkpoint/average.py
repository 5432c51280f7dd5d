"""Averaging the weights of several checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from towerpack.checkpoint.open_source import open_source
from towerpack.checkpoint.report import LoadError
from towerpack.checkpoint.variables import load_checkpoint_vars, model_variables


def average_checkpoints(paths: Sequence[str | Path]) -> dict[str, np.ndarray]:
    """The mean of each floating-point variable of the model; others as in the last checkpoint.

    Sums are in float64. Slots of optimizers and counters are left out: their mean means nothing.
    """
    if len(paths) < 2:
        raise ValueError(f"expected at least two checkpoints to average, received {len(paths)}")
    wanted = model_variables(open_source(paths[-1]).entries)
    total: dict[str, np.ndarray] = {}
    for path in paths:
        values = load_checkpoint_vars(path)
        for name, entry in wanted.items():
            found = values.get(name)
            if found is None or found.shape != entry.shape:
                received = "none" if found is None else f"shape {list(found.shape)}"
                raise LoadError(f"expected {name} as {entry} in {path}, received {received}")
            if _is_floating(found):
                total[name] = total.get(name, 0.0) + found.astype(np.float64)
            else:
                total[name] = found
    dtypes = {name: values[name].dtype for name in wanted}
    return {
        name: (value / len(paths)).astype(dtypes[name]) if _is_floating(values[name]) else value
        for name, value in total.items()
    }


def _is_floating(array: np.ndarray) -> bool:
    # bfloat16 and its kin are no kinds of np.floating.
    return np.issubdtype(array.dtype, np.inexact) or "float" in array.dtype.name
