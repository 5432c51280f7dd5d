"""Datapoints of different sizes into one batch, padded to the largest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.stacking import Allocate, BatchError, list_rows, stack_rows


def pad_rows(
    rows: Sequence[Any],
    pad_value: Any = 0,
    allocate: Allocate = np.empty,
    indices: Sequence[int] | np.ndarray | None = None,
) -> Any:
    """One batch, in which components of different shapes are padded at the end of each axis.

    `pad_value` is one for all components, or a dict by position or key. A component that is a list
    of numbers is taken as an array, of int32 or float32.

    >>> pad_rows([[np.array([1, 2]), 7], [np.array([3]), 8]], pad_value=-1)
    [array([[ 1,  2],
           [ 3, -1]]), array([7, 8], dtype=int32)]
    """
    columns = list_rows(rows, indices)
    if not isinstance(rows[0], list | tuple | dict):
        return _pad(columns, pad_value, allocate, "", indices)
    items = columns.items() if isinstance(columns, dict) else enumerate(columns)
    batch = {}
    for key, column in items:
        value = pad_value.get(key, 0) if isinstance(pad_value, dict) else pad_value
        batch[key] = _pad(column, value, allocate, f"[{key!r}]", indices)
    if isinstance(columns, dict):
        return batch
    if isinstance(columns, list):
        return list(batch.values())
    return type(columns)(*batch.values()) if hasattr(columns, "_fields") else tuple(batch.values())


def _pad(column: list[Any], pad_value: Any, allocate: Allocate, path: str, indices: Any) -> Any:
    if isinstance(column[0], list):
        column = _arrays_of(column)
    shapes = [np.shape(x) for x in column]
    if not all(isinstance(x, np.ndarray) for x in column) or len(set(shapes)) == 1:
        return _stack(column, allocate, path, indices)
    for row, (value, shape) in enumerate(zip(column, shapes, strict=True)):
        if len(shape) != len(shapes[0]) or value.dtype != column[0].dtype:
            number = row if indices is None else int(indices[row])
            raise BatchError(
                f"component {path} of datapoint {number}: expected {len(shapes[0])} axes and dtype "
                f"{column[0].dtype} like the batch's first, received shape {shape} and dtype "
                f"{value.dtype}"
            )
    batch = allocate((len(column), *np.max(shapes, axis=0).tolist()), column[0].dtype)
    batch[...] = pad_value
    for row, value in enumerate(column):
        corner = tuple(slice(size) for size in value.shape)
        batch[row][corner] = value
    return batch


def _stack(column: list[Any], allocate: Allocate, path: str, indices: Any) -> Any:
    try:
        return stack_rows(column, allocate, indices)
    except BatchError as error:
        error.add_note(f"in component {path}")
        raise


def _arrays_of(lists: list[Any]) -> list[np.ndarray]:
    """Lists of Python numbers as arrays of one dtype; an empty list has none of its own."""
    arrays = [np.asarray(x) for x in lists]
    kinds = {array.dtype for array in arrays if array.size} or {arrays[0].dtype}
    dtype = np.result_type(*kinds)
    small = {np.dtype(np.int64): np.int32, np.dtype(np.float64): np.float32}.get(dtype, dtype)
    if dtype == np.int64 and any(a.size and (np.abs(a) >= 2**31).any() for a in arrays):
        small = dtype
    return [array.astype(small) for array in arrays]
