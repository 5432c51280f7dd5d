"""Batches of large rows: each row is copied into the batch while it is still in the cache.

To make all rows first and stack them then would write every one to memory and read it back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.stacking import (
    SMALL_ROW,
    Allocate,
    check_alike,
    check_structure,
    stack_column,
    stack_rows,
)

CACHE_BYTES = 1 << 22  # a share of the cache that cores have in common; less means more calls
SLOW_ROW = 1e-4  # seconds: such rows come one by one, while a core's own cache still has them

Indices = Sequence[int] | np.ndarray
Read = Callable[[Indices], list[Any]]
Each = Callable[[Indices], Iterator[Any]]


def stack_in_parts(read: Read, each: Each, indices: Indices, allocate: Allocate) -> Any:
    """`stack_rows(read(indices))`, with the same result and errors, reading large rows by parts.

    `each` gives the same rows as `read`, but makes each only when it is asked for.

    >>> def read(part): return [[np.full(2, i), i] for i in part]
    >>> stack_in_parts(read, lambda part: iter(read(part)), [5, 6], np.empty)
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
    batch = _Batch(head[0], indices, allocate)
    batch.add(head)
    if slow:
        for row in each(indices[1:]):
            batch.add_row(row)
    else:
        step = max(1, CACHE_BYTES // size)
        for start in range(1, len(indices), step):
            batch.add(read(indices[start : start + step]))
    return batch.finished()


def _bytes_of_row(row: Any) -> int:
    """The size of a plain row's arrays; 0 for a row of another form, stacked as a whole."""
    if type(row) is not list and type(row) is not tuple:
        return 0
    if not all(_is_plain(x) or isinstance(x, int | float | np.number | np.bool_) for x in row):
        return 0
    return sum(x.nbytes for x in row if isinstance(x, np.ndarray))


def _is_plain(x: Any) -> bool:
    return type(x) is np.ndarray and x.ndim > 0 and x.dtype.kind in "biufc"


class _Batch:
    """The arrays that rows are written to, and the scalars of the rows so far."""

    def __init__(self, first: Any, indices: Indices, allocate: Allocate):
        self.first, self.indices, self.allocate, self.count = first, indices, allocate, 0
        self.columns: list[Any] = [
            allocate((len(indices), *x.shape), x.dtype) if isinstance(x, np.ndarray) else []
            for x in first
        ]
        self.kind, self.length = type(first), len(first)

    def add_row(self, row: Any) -> None:
        """Copies one row in."""
        if type(row) is not self.kind or len(row) != self.length:
            check_structure(self.first, row, self._numbers(self.count))
        for place, (column, first, value) in enumerate(
            zip(self.columns, self.first, row, strict=True)
        ):
            if type(column) is list:
                column.append(value)
            else:
                self._check(first, value, place, self.count)
                column[self.count] = value
        self.count += 1

    def add(self, rows: list[Any]) -> None:
        """Copies rows in: all arrays of a component by one call, for after each copy the
        interpreter would come back to cold caches."""
        for number, row in enumerate(rows, self.count):
            if type(row) is not self.kind or len(row) != self.length:
                check_structure(self.first, row, self._numbers(number))
        for place, column in enumerate(self.columns):
            values = [row[place] for row in rows]
            if isinstance(column, list):
                column += values
                continue
            first = self.first[place]
            for number, value in enumerate(values, self.count):
                self._check(first, value, place, number)
            part = column[self.count : self.count + len(rows)]
            np.concatenate(values, out=part.reshape(len(rows) * len(first), *first.shape[1:]))
        self.count += len(rows)

    def _check(self, first: np.ndarray, value: Any, place: int, number: int) -> None:
        same = type(value) is np.ndarray and value.shape == first.shape
        if not same or value.dtype != first.dtype:
            check_alike(first, value, f"[{place}]", self._numbers(number))

    def _numbers(self, row: int) -> tuple[int, int]:
        """The numbers of the batch's first datapoint and of this one, for error messages."""
        return int(self.indices[0]), int(self.indices[row])

    def finished(self) -> Any:
        batch = [
            stack_column(column, self.allocate, f"[{place}]", self.indices)
            if isinstance(column, list)
            else column
            for place, column in enumerate(self.columns)
        ]
        return batch if isinstance(self.first, list) else tuple(batch)
