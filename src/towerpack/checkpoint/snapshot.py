"""Copies of variables, taken between two steps."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from towerpack.checkpoint.bundle import is_text

_PIECE = 1 << 24  # bytes that a thread copies at once
_THREADS = min(4, os.cpu_count() or 1)  # of which a few use all of the memory's bandwidth

Layout = list[tuple[str, np.dtype, tuple[int, ...]]]


class Snapshot:
    """Arrays that hold what the variables held when `take` was called, whatever happens to them.

    They lie in one piece of memory as in a checkpoint's file: one after another, in the order of
    their names. So they are written from where they lie. The memory is reused, since to touch new
    memory costs several times as much as the copy itself: what `take` gave is overwritten by the
    next `take`.
    """

    def __init__(self) -> None:
        self._layout: Layout = []
        self._arrays: dict[str, np.ndarray] = {}

    def take(self, variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """A real copy of each variable; on a CPU what TensorFlow gives may be the variable itself.

        Costs one copy in memory, while the caller waits; large ones are copied by several threads.
        """
        values = {name: view_of(variable) for name, variable in variables.items()}
        numbers = {name: value for name, value in values.items() if not is_text(value.dtype)}
        self._make_room((name, value.dtype, value.shape) for name, value in numbers.items())
        with ThreadPoolExecutor(_THREADS) as pool:
            for name, value in numbers.items():
                # Bytes: numbers would have to lie at multiples of their size.
                target = _bytes_of(self._arrays[name])
                content = _bytes_of(np.ascontiguousarray(value))
                if content.size <= _PIECE:
                    target[...] = content
                else:
                    list(pool.map(np.copyto, _pieces(target), _pieces(content)))
        return {
            name: self._arrays[name] if name in numbers else value.copy()
            for name, value in values.items()
        }

    def reserve(self, variables: Mapping[str, Any]) -> None:
        """Makes room for the variables now, so that the first `take` costs no more than others."""
        kinds = {name: np.dtype(v.dtype.as_numpy_dtype) for name, v in variables.items()}
        self._make_room(
            (name, kinds[name], tuple(variable.shape))
            for name, variable in variables.items()
            if not is_text(kinds[name])
        )
        for array in self._arrays.values():
            _bytes_of(array).fill(0)  # the kernel gives memory when it is written to

    def _make_room(self, needed: Iterable[tuple[str, np.dtype, tuple[int, ...]]]) -> None:
        layout = sorted(needed, key=lambda entry: entry[0].encode())
        if layout == self._layout:
            return
        self._layout, self._arrays = layout, {}
        sizes = [dtype.itemsize * int(np.prod(shape)) for _, dtype, shape in layout]
        # Anonymous memory begins on a page, as direct writes need; in large pages if it is private.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        pages = mmap.mmap(-1, max(1, sum(sizes)), flags=private)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        memory, offset = np.frombuffer(pages, np.uint8), 0
        for (name, dtype, shape), size in zip(layout, sizes, strict=True):
            self._arrays[name] = np.ndarray(shape, dtype, memory, offset)
            offset += size


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def _pieces(flat: np.ndarray) -> Iterator[np.ndarray]:
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
