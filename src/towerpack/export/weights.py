"""Weights alone: `.npz` for numpy, `.safetensors` for everything else."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from towerpack.core.optional import require

TOLERANCE = 0.0  # nothing is computed, so nothing may change
SAFETENSORS = ".safetensors"
SUFFIXES = (".npz", SAFETENSORS)


def serialized_weights(values: Mapping[str, np.ndarray], path: Path) -> bytes:
    """The file's content, in the format that its ending says."""
    if path.suffix == SAFETENSORS:
        module = require("safetensors.numpy", extra="safetensors")
        contiguous = {name: np.ascontiguousarray(value) for name, value in values.items()}
        content: bytes = module.save(contiguous)
        return content
    if path.suffix != ".npz":
        raise ValueError(f"expected a file that ends in one of {SUFFIXES}, received {path.name!r}")
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **values)
    return buffer.getvalue()


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """Arrays by name."""
    if path.suffix == SAFETENSORS:
        module = require("safetensors.numpy", extra="safetensors")
        values: dict[str, np.ndarray] = module.load_file(path)
        return values
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
