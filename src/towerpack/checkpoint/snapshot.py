"""Copies of variables, taken between two steps."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from towerpack.checkpoint.bundle import DIRECT_BLOCK, PackedArrays, is_text

_PIECE = 1 << 24  # bytes that a thread copies at once
_THREADS = min(4, os.cpu_count() or 1)  # a few threads use the full bandwidth of the memory


class Snapshot:
    """Arrays that hold what the variables held when `take` was called.

    They lie in one piece of memory as in the data file, so that they are written without another
    copy. The memory is reused, since touching new memory costs several times as much as the copy:
    each `take` overwrites what the one before returned.
    """

    def __init__(self) -> None:
        self._layout: list[tuple[str, np.dtype, tuple[int, ...]]] | None = None
        self._arrays = PackedArrays()

    def take(self, variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Copies each variable. On a CPU, the array of a variable may share the variable's memory.

        The caller waits for one copy in memory; large variables are copied by several threads.
        """
        values = {name: view_of(variable) for name, variable in variables.items()}
        numbers = {
            name: np.ascontiguousarray(value, value.dtype.newbyteorder("<")).reshape(value.shape)
            for name, value in values.items()
            if not is_text(value.dtype)
        }
        self._allocate((name, value.dtype, value.shape) for name, value in numbers.items())
        with ThreadPoolExecutor(_THREADS) as pool:
            for name, value in numbers.items():
                # As bytes, since the packed arrays are not aligned to the size of their elements.
                target, content = _bytes_of(self._arrays[name]), _bytes_of(value)
                if content.size <= _PIECE:
                    target[...] = content
                else:
                    list(pool.map(np.copyto, _pieces(target), _pieces(content)))
        if len(numbers) == len(values):
            return self._arrays
        return {**self._arrays, **{n: v.copy() for n, v in values.items() if n not in numbers}}

    def reserve(self, variables: Mapping[str, Any]) -> None:
        """Allocates the memory now, so that the first `take` costs no more than the others."""
        kinds = {name: np.dtype(v.dtype.as_numpy_dtype) for name, v in variables.items()}
        self._allocate(
            (name, kinds[name], tuple(variable.shape))
            for name, variable in variables.items()
            if not is_text(kinds[name])
        )
        self._arrays.memory.fill(0)  # the kernel provides memory when it is written to

    def _allocate(self, needed: Iterable[tuple[str, np.dtype, tuple[int, ...]]]) -> None:
        layout = sorted(needed, key=lambda entry: entry[0].encode())
        if layout == self._layout:
            return
        sizes = [dtype.itemsize * int(np.prod(shape)) for _, dtype, shape in layout]
        memory = np.empty(sum(sizes) + DIRECT_BLOCK, np.uint8)
        memory = memory[-memory.ctypes.data % DIRECT_BLOCK :]  # direct writes begin on a page
        self._layout, self._arrays, offset = layout, PackedArrays(), 0
        self._arrays.memory = memory
        for (name, dtype, shape), size in zip(layout, sizes, strict=True):
            self._arrays[name] = np.ndarray(shape, dtype, memory, offset)
            offset += size


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def _pieces(flat: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, flat.size, _PIECE):
        yield flat[start : start + _PIECE]


def view_of(variable: Any) -> np.ndarray:
    """The value as an array, without a copy where possible: read it at once, do not keep it."""
    if isinstance(variable, np.ndarray | np.generic | int | float | bool | str | bytes | list):
        return np.asarray(variable)
    value = variable.read_value() if hasattr(variable, "read_value") else variable
    try:
        return np.asarray(memoryview(value))
    except (TypeError, ValueError, BufferError):  # strings, bfloat16, values on another device
        return np.asarray(value.numpy())
