"""Datapoints into batches: rows written into one preallocated array per component."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from towerpack.core import tree

Allocate = Callable[[tuple[int, ...], np.dtype], np.ndarray]
"""Makes an uninitialized array of a shape and dtype: `numpy.empty`, or a place in shared memory."""


class BatchError(ValueError):
    """Datapoints do not fit into one batch; the message names the component and the datapoint."""


def stack_rows(
    rows: Sequence[Any],
    allocate: Allocate = np.empty,
    indices: Sequence[int] | np.ndarray | None = None,
) -> Any:
    """One batch from datapoints of equal structure: each component gets a new first axis.

    Python ints become int32 (int64 where they do not fit), floats float32, bools bool, strings
    unicode; arrays keep their dtype. `indices` are the datapoints' numbers, for error messages.

    >>> stack_rows([[np.zeros(2), 1], [np.ones(2), 2]])
    [array([[0., 0.],
           [1., 1.]]), array([1, 2], dtype=int32)]
    """
    first = rows[0]
    # The common shapes of a datapoint, without the cost of walking trees.
    if type(first) is list or type(first) is tuple:
        if any(len(row) != len(first) for row in rows):
            raise _structure_error(rows, indices)
        if not any(isinstance(x, list | tuple | dict) for x in first):
            columns = [
                _stack(column, allocate, f"[{i}]", indices)
                for i, column in enumerate(zip(*rows, strict=True))
            ]
            return columns if type(first) is list else type(first)(columns)
    flat, spec = tree.flatten(first)
    paths = [path for path, _ in tree.leaves_with_paths(first)]
    table = [flat]
    for row in rows[1:]:
        values, other = tree.flatten(row)
        if other != spec:
            raise _structure_error(rows, indices)
        table.append(values)
    columns = [
        _stack(column, allocate, path, indices)
        for path, column in zip(paths, zip(*table, strict=True), strict=True)
    ]
    return tree.unflatten(spec, columns)


def _stack(column: Sequence[Any], allocate: Allocate, path: str, indices: Any) -> np.ndarray:
    first = column[0]
    if not isinstance(first, np.ndarray | np.generic):
        return _stack_scalars(column, allocate, path, indices)
    shape, dtype = first.shape, first.dtype
    if dtype == object:
        raise BatchError(
            f"component {path} is an array of Python objects; expected numbers or strings. Convert it "
            "in a MapData, or batch with use_list=True"
        )
    if dtype.kind in "US":  # the widest string decides
        dtype = np.result_type(*{np.asarray(x).dtype for x in column})
    batch = allocate((len(column), *shape), dtype)
    if not shape:
        batch[...] = column
        return batch
    for row, value in enumerate(column):
        if value.shape != shape or (value.dtype != dtype and dtype.kind not in "US"):
            number = row if indices is None else int(indices[row])
            raise BatchError(
                f"component {path} of datapoint {number}: expected shape {shape} and dtype {dtype} "
                f"like the batch's first, received {value.shape} {value.dtype}. Resize or pad before "
                "batching, or use BatchDataByShape, BucketBatchData or use_list=True"
            )
        batch[row] = value
    return batch


def _stack_scalars(column: Sequence[Any], allocate: Allocate, path: str, indices: Any) -> np.ndarray:
    kinds = {bool if isinstance(x, bool) else type(x) for x in column}
    if kinds <= {bool, int, float} and kinds != {bool, int}:
        dtype: Any = np.bool_ if kinds == {bool} else np.float32 if float in kinds else np.int32
        if dtype is np.int32 and not all(-(2**31) <= x < 2**31 for x in column):
            dtype = np.int64
        batch = allocate((len(column),), np.dtype(dtype))
        batch[...] = column
        return batch
    if kinds <= {str} or kinds <= {bytes}:
        source = np.array(column)
        batch = allocate(source.shape, source.dtype)
        batch[...] = source
        return batch
    row = next((i for i, x in enumerate(column) if type(x) is not type(column[0])), 0)
    number = row if indices is None else int(indices[row])
    names = sorted(kind.__name__ for kind in kinds)
    raise BatchError(
        f"component {path} of datapoint {number}: expected numbers, strings or arrays of one kind, "
        f"received {' and '.join(names)}. Convert it in a MapData, or batch with use_list=True"
    )


def _structure_error(rows: Sequence[Any], indices: Any) -> BatchError:
    for row, value in enumerate(rows):
        found = tree.difference(rows[0], value)
        if found:
            number = row if indices is None else int(indices[row])
            return BatchError(f"datapoint {number} differs from the batch's first in structure: {found}")
    return BatchError("the datapoints of one batch differ in structure")


def list_rows(rows: Sequence[Any], indices: Sequence[int] | np.ndarray | None = None) -> Any:
    """One batch that holds a list for each component, whatever the components are.

    >>> list_rows([["a", 1], ["bc", 2]])
    [['a', 'bc'], [1, 2]]
    """
    first = rows[0]
    if any(type(row) is not type(first) for row in rows):
        raise _structure_error(rows, indices)
    if isinstance(first, dict):
        if any(row.keys() != first.keys() for row in rows):
            raise _structure_error(rows, indices)
        return {key: [row[key] for row in rows] for key in first}
    if isinstance(first, list | tuple):
        if any(len(row) != len(first) for row in rows):
            raise _structure_error(rows, indices)
        columns = [list(column) for column in zip(*rows, strict=True)]
        if isinstance(first, list):
            return columns
        return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)
    return list(rows)
