"""Copies of variables, taken between two steps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

_PIECE = 1 << 22  # elements that a thread copies at once
_THREADS = min(4, os.cpu_count() or 1)  # of which a few use all of the memory's bandwidth

# Memory that was never touched costs several times as much as the copy itself: the first access of
# each page goes through the kernel. So the arrays of one snapshot serve the next one.


class Snapshot:
    """Arrays that hold what the variables held when `take` was called, whatever happens to them.

    The arrays are reused: what `take` gave is overwritten by the next `take`.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}

    def take(self, variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """A real copy of each variable; on a CPU what TensorFlow gives may be the variable itself.

        Costs one copy in memory, while the caller waits; large ones are copied by several threads.
        """
        taken = {}
        with ThreadPoolExecutor(_THREADS) as pool:
            for name, variable in variables.items():
                value = view_of(variable)
                taken[name] = self._room_for(name, value)
                if value.size <= _PIECE or not value.flags.c_contiguous:
                    np.copyto(taken[name], value)
                else:
                    list(pool.map(np.copyto, _pieces(taken[name]), _pieces(value)))
        self._arrays = taken
        return dict(taken)

    def reserve(self, variables: Mapping[str, Any]) -> None:
        """Makes room for the variables now, so that the first `take` costs no more than others."""
        for name, variable in variables.items():
            dtype = np.dtype(variable.dtype.as_numpy_dtype)
            if not dtype.hasobject:
                array = np.empty(tuple(variable.shape), dtype)
                array.fill(0)  # `np.zeros` would leave the memory untouched
                self._arrays[name] = array

    def _room_for(self, name: str, value: np.ndarray) -> np.ndarray:
        array = self._arrays.get(name)
        if array is None or array.shape != value.shape or array.dtype != value.dtype:
            array = np.empty(value.shape, value.dtype)
        return array


def _pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    flat = array.reshape(-1)
    for start in range(0, flat.size, _PIECE):
        yield flat[start : start + _PIECE]


def view_of(variable: Any) -> np.ndarray:
    """The value as an array, without a copy where that is possible: look at it, do not keep it."""
    if isinstance(variable, np.ndarray | np.generic | int | float | bool | str | bytes | list):
        return np.asarray(variable)
    value = variable.read_value() if hasattr(variable, "read_value") else variable
    try:
        return np.asarray(memoryview(value))
    except (TypeError, ValueError, BufferError):  # strings, bfloat16, values on another device
        return np.asarray(value.numpy())
