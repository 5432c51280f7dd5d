"""Batches of large rows: each row is copied into the batch while it is still in the cache.

If all rows were made first and then stacked, each would be written to memory and read back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.epoch import Allocate
from towerpack.dataflow.stacking import SMALL_ROW, have_form, stack_column, stack_rows

CACHE_BYTES = 1 << 22  # part of the cache that cores share; less would mean more calls
SLOW_ROW = 1e-4  # seconds: such rows are read one by one, while a core's own cache still has them

Indices = Sequence[int] | np.ndarray
Read = Callable[[Indices], list[Any]]


def stack_in_parts(read: Read, indices: Indices, allocate: Allocate) -> Any:
    """`stack_rows(read(indices))`, with the same result and errors, reading large rows in parts.

    >>> def read(part): return [[np.full(2, i), i] for i in part]
    >>> stack_in_parts(read, [5, 6], np.empty)
    [array([[5, 5],
           [6, 6]]), array([5, 6], dtype=int32)]
    """
    begun = time.perf_counter()
    head = read(indices[:1])
    slow = time.perf_counter() - begun > SLOW_ROW
    size = _bytes_of_row(head[0])
    if size <= SMALL_ROW or len(indices) == 1:
        return stack_rows(
            [*head, *read(indices[1:])] if len(indices) > 1 else head, allocate, indices
        )
    first = head[0]
    columns: list[Any] = [
        allocate((len(indices), *x.shape), x.dtype) if isinstance(x, np.ndarray) else []
        for x in first
    ]
    step = 1 if slow else max(1, CACHE_BYTES // size)
    rows, begin = head, 0
    while rows:
        if not _are_alike(rows, first):
            return stack_rows(read(indices), allocate, indices)  # raises the error
        end = begin + len(rows)
        # One call per component: a copy of each row would leave cold caches to the interpreter.
        for place, column in enumerate(columns):
            values = [row[place] for row in rows]
            if isinstance(column, list):
                column += values
            else:
                joined = column[begin:end].reshape(-1, *first[place].shape[1:])
                np.concatenate(values, out=joined)
        begin, rows = end, read(indices[end : end + step]) if end < len(indices) else []
    batch = [
        stack_column(column, allocate, f"[{place}]", indices)
        if isinstance(column, list)
        else column
        for place, column in enumerate(columns)
    ]
    return batch if isinstance(first, list) else tuple(batch)


def _are_alike(rows: list[Any], first: Any) -> bool:
    """Whether all rows have the form of the first one, and arrays of its shapes and dtypes."""
    if set(map(type, rows)) != {type(first)} or set(map(len, rows)) != {len(first)}:
        return False
    columns = zip(*rows, strict=True)
    return all(
        set(map(type, column)) == {np.ndarray} and have_form(column, x.shape, x.dtype)
        for column, x in zip(columns, first, strict=True)
        if isinstance(x, np.ndarray)
    )


def _bytes_of_row(row: Any) -> int:
    """The size of a plain row's arrays; 0 for a row of another form, stacked as a whole."""
    if type(row) is not list and type(row) is not tuple:
        return 0
    if not all(_is_plain(x) or isinstance(x, int | float | np.number | np.bool_) for x in row):
        return 0
    return sum(x.nbytes for x in row if isinstance(x, np.ndarray))


def _is_plain(x: Any) -> bool:
    return type(x) is np.ndarray and x.ndim > 0 and x.dtype.kind in "biufc"
