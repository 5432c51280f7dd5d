"""Weights alone: `.npz` for numpy, `.safetensors` for everything else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from towerpack.checkpoint import save_checkpoint_vars
from towerpack.export.compare import ExportError

TOLERANCE = 1e-5  # of the outputs: the same sums in another order, from one call to the next
SUFFIXES = (".npz", ".safetensors")


def write_weights(values: Mapping[str, np.ndarray], path: Path) -> None:
    """Writes the file, in the format that its ending says."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"expected a file that ends in one of {SUFFIXES}, received {path.name!r}")
    save_checkpoint_vars(values, path)


def check_weights(expected: Mapping[str, np.ndarray], received: Mapping[str, np.ndarray]) -> None:
    """Raises `ExportError` unless both have the same names, shapes and bits."""
    changed = [
        name
        for name in sorted({*expected, *received})
        if name not in received or name not in expected or not _same(expected[name], received[name])
    ]
    if changed:
        raise ExportError(
            f"expected the weights bit for bit, received others for {changed}; nothing was written"
        )


def _same(expected: np.ndarray, received: np.ndarray) -> bool:
    # By their bytes: NaN is the same as itself, and -0 is not 0.
    return expected.shape == received.shape and expected.tobytes() == received.tobytes()
