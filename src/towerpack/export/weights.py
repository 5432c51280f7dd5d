"""Weights alone: `.npz` for numpy, `.safetensors` for everything else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from towerpack.checkpoint import load_checkpoint_vars, save_checkpoint_vars
from towerpack.export.compare import ExportError
from towerpack.export.inference_graph import InferenceGraph, Signature, build
from towerpack.predict import PredictConfig

TOLERANCE = 1e-5  # of the outputs: two calls may add the same numbers in another order
SUFFIXES = (".npz", ".safetensors")


def write_weights(values: Mapping[str, np.ndarray], path: Path) -> None:
    """Writes the file in the format that its suffix names."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"expected a file that ends in one of {SUFFIXES}, received {path.name!r}")
    save_checkpoint_vars(values, path)


def check_weights(expected: Mapping[str, np.ndarray], received: Mapping[str, np.ndarray]) -> None:
    """Raises `ExportError` unless both have the same names, shapes and bits."""
    # By their bytes: NaN is the same as itself, and -0 is not 0.
    before, after = (
        {name: (value.shape, value.tobytes()) for name, value in values.items()}
        for values in (expected, received)
    )
    changed = sorted(n for n in {*before, *after} if before.get(n) != after.get(n))
    if changed:
        raise ExportError(
            f"expected the weights bit for bit, received other values for {changed}; nothing was "
            "written"
        )


def open_weights(
    path: Path, expected: Mapping[str, np.ndarray], config: PredictConfig, signature: Signature
) -> InferenceGraph:
    """A second tower with the weights in the file, which must be the expected ones."""
    loaded = load_checkpoint_vars(path)
    check_weights(expected, loaded)
    return build(config.with_weights(loaded or None), {"": signature})[""]
