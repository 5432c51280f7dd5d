"""Arrays in `.safetensors` files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.checkpoint.source import Entry
from towerpack.core.files import atomic_file
from towerpack.core.optional import require

_DTYPES = {
    "BOOL": "bool",
    "BF16": "bfloat16",
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}


class SafetensorsSource:
    def __init__(self, path: str | Path):
        self.description, self._path = str(path), str(path)
        with self._open() as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no dict)
            self.entries = {
                name: Entry(
                    tuple(part.get_shape()), _DTYPES.get(part.get_dtype(), part.get_dtype().lower())
                )
                for name, part in slices.items()
            }

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        with self._open() as file:
            for name in names:
                yield name, file.get_tensor(name)

    def _open(self) -> Any:
        library = require("safetensors", extra="safetensors")
        try:
            return library.safe_open(self._path, framework="np")
        except library.SafetensorError as error:
            raise ValueError(f"{self._path} is damaged, or no safetensors file: {error}") from error


def write_safetensors(arrays: Mapping[str, np.ndarray], path: str | Path) -> None:
    """Writes a `.safetensors` file, whole or not at all."""
    library = require("safetensors.numpy", extra="safetensors")
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    # `ascontiguousarray` makes scalars one-dimensional.
    content = library.save({name: a.reshape(np.shape(arrays[name])) for name, a in plain.items()})
    with atomic_file(path) as file:
        file.write(content)
