"""Where values to load come from: what is in a file, before any of it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class Entry:
    """What is known of a value without reading it."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


class Source(Protocol):
    """Values by name. `read` is asked once, for the names that are wanted."""

    description: str

    @property
    def entries(self) -> Mapping[str, Entry]: ...

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]: ...


class ArraySource:
    """Arrays that are in memory.

    >>> ArraySource({"W:0": np.ones([2], np.float32)}, "a dict").entries
    {'W': Entry(shape=(2,), dtype='float32')}
    """

    def __init__(self, arrays: Mapping[str, Any], description: str):
        self.description = description
        # Tensors' names, with :0, are what old scripts have in their dicts.
        self._arrays = {name.removesuffix(":0"): np.asarray(a) for name, a in arrays.items()}
        for name, array in self._arrays.items():
            if array.dtype == object and not all(isinstance(v, bytes | str) for v in array.flat):
                raise TypeError(f"expected an array of numbers as {name!r}, received objects")
        self.entries = {name: Entry(a.shape, a.dtype.name) for name, a in self._arrays.items()}

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
        for name in names:
            yield name, self._arrays[name]
