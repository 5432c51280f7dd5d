"""Datapoints into batches: rows written into one preallocated array per component."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from towerpack.core import tree
from towerpack.dataflow.epoch import Allocate

SMALL_ROW = 4096  # bytes: below this, another copy costs less than a numpy assignment for each row
SCALARS = (bool, int, float, str, bytes)

_shape, _dtype = attrgetter("shape"), attrgetter("dtype")


class BatchError(ValueError):
    """Datapoints do not form one batch; the message names the component and the datapoint."""


class DroppedDatapoint(BatchError, LookupError):
    """A datapoint was requested by its index, but the flow drops it."""

    def __init__(self, index: int, asked_by: str | None = None):
        if asked_by is None:
            message = f"datapoint {index} is dropped by this flow; iterate for those that are not"
        else:
            message = (
                f"datapoint {index} was dropped by a function that returned None, so {asked_by} "
                "cannot find its datapoints by index. Drop them in a FilterData, which announces "
                "it, or map in workers with MultiProcessMapData(ds, num_proc, func) before this "
                "stage"
            )
        super().__init__(message)
        self.index, self.asked_by = index, asked_by

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.index, self.asked_by)


def stack_rows(
    rows: Sequence[Any],
    allocate: Allocate = np.empty,
    indices: Sequence[int] | np.ndarray | None = None,
) -> Any:
    """One batch from datapoints of equal structure: each component gets a new first axis.

    Python ints become int32 (int64 where they do not fit), floats float32, bools bool, strings
    unicode; arrays keep their dtype. Values that cannot be stacked exactly are refused: different
    shapes or dtypes, Python objects, and None (a dropped datapoint). `indices` are the datapoints'
    numbers, for error messages.

    >>> stack_rows([[np.zeros(2), 1], [np.ones(2), 2]])
    [array([[0., 0.],
           [1., 1.]]), array([1, 2], dtype=int32)]
    """
    first = rows[0]
    kind = type(first)
    if first is None or set(map(type, rows)) != {kind}:
        raise _structure_error(rows, indices)
    # The common shape of a datapoint, without the cost of walking trees.
    if kind is list or kind is tuple:
        try:
            columns = list(zip(*rows, strict=True))
        except ValueError:
            raise _structure_error(rows, indices) from None
        if not any(tree.is_container(component) for component in first):
            batch = [stack_column(x, allocate, f"[{i}]", indices) for i, x in enumerate(columns)]
            return batch if kind is list else tuple(batch)
    flat, spec = tree.flatten(first)
    table = [flat]
    for row in rows[1:]:
        values, other = tree.flatten(row)
        if other != spec:
            raise _structure_error(rows, indices)
        table.append(values)
    paths = [path for path, _ in tree.leaves_with_paths(first)]
    batch = [
        stack_column(column, allocate, path, indices)
        for path, column in zip(paths, zip(*table, strict=True), strict=True)
    ]
    return tree.unflatten(spec, batch)


def list_rows(rows: Sequence[Any], indices: Sequence[int] | np.ndarray | None = None) -> Any:
    """One batch with a list for each component, which may be of any type.

    >>> list_rows([["a", 1], ["bc", 2]])
    [['a', 'bc'], [1, 2]]
    """
    first = rows[0]
    if first is None or set(map(type, rows)) != {type(first)}:
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


def stack_column(column: Sequence[Any], allocate: Allocate, path: str, indices: Any) -> np.ndarray:
    """One component of a batch from its values in all rows."""
    first = column[0]
    if isinstance(first, SCALARS) and not isinstance(first, np.generic):
        return _stack_scalars(column, allocate, path, indices)
    if not isinstance(first, np.ndarray | np.generic) and _is_arraylike(first):
        column = [np.asarray(value) for value in column]
        first = column[0]
    if not isinstance(first, np.ndarray | np.generic) or first.dtype.hasobject:
        raise BatchError(
            f"component {path} of datapoint {_number(0, indices)}: expected numbers, strings or "
            f"arrays of them, received {_kind(first)}. Convert it in a MapData, leave it out with "
            "SelectComponent, or batch with use_list=True"
        )
    if isinstance(first, np.ma.MaskedArray):
        raise BatchError(f"component {path} is a masked array; fill it in a MapData: x.filled(...)")
    return _stack_arrays(column, first.shape, first.dtype, allocate, path, indices)


def have_form(column: Sequence[Any], shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Whether all values are arrays of this shape and dtype."""
    try:
        shapes, dtypes = list(map(_shape, column)), list(map(_dtype, column))
    except AttributeError:
        return False
    return shapes.count(shape) == dtypes.count(dtype) == len(column)


def _is_arraylike(value: Any) -> bool:
    """Whether it is a tensor of another library, or an image of PIL."""
    return hasattr(value, "__array__") or hasattr(value, "__array_interface__")


def _stack_arrays(
    column: Sequence[Any],
    shape: tuple[int, ...],
    dtype: np.dtype,
    allocate: Allocate,
    path: str,
    indices: Any,
) -> np.ndarray:
    count = len(column)
    if isinstance(column[0], np.number | np.bool_):  # the type determines shape and dtype
        alike = len(set(map(type, column))) == 1
    else:
        alike = have_form(column, shape, dtype)
    if not alike:
        dtype = _common_string(column, shape, dtype, path, indices)
    batch = allocate((count, *shape), dtype)
    if not shape:
        batch[...] = column
        return batch
    if alike and column[0].nbytes <= SMALL_ROW and batch.size:
        try:
            flat = np.frombuffer(b"".join(column), np.uint8)
            batch.reshape(-1).view(np.uint8)[...] = flat
            return batch
        except (BufferError, TypeError, ValueError):
            pass  # not contiguous, or a dtype without a buffer, such as bfloat16: row by row
    for row, value in enumerate(column):
        batch[row] = value
    return batch


def _common_string(
    column: Sequence[Any], shape: tuple[int, ...], dtype: np.dtype, path: str, indices: Any
) -> np.dtype:
    """The dtype of the widest string; raises an error for other differences."""
    for row, value in enumerate(column):
        found = getattr(value, "shape", None), getattr(value, "dtype", None)
        same_kind = isinstance(found[1], np.dtype) and found[1].kind == dtype.kind
        if found[0] == shape and (found[1] == dtype or (same_kind and dtype.kind in "US")):
            continue
        raise BatchError(
            f"component {path} of datapoint {_number(row, indices)}: expected {dtype} of shape "
            f"{shape} like the first of its batch, received {_kind(value)}. Resize, pad or convert "
            "it in a MapData, or use BatchDataByShape, BucketBatchData or use_list=True"
        )
    return np.result_type(*{value.dtype for value in column})


def _stack_scalars(
    column: Sequence[Any], allocate: Allocate, path: str, indices: Any
) -> np.ndarray:
    kinds = set(map(type, column))
    if not kinds <= set(SCALARS):  # subclasses, such as an IntEnum, count as their base
        kinds = {next((k for k in SCALARS if isinstance(x, k)), type(x)) for x in column}
    if kinds == {int}:
        dtype = _integer_dtype(column, path, indices)
    elif kinds == {float} or kinds == {int, float}:
        dtype = np.dtype(np.float32)
    elif kinds == {bool}:
        dtype = np.dtype(np.bool_)
    elif kinds == {str} or kinds == {bytes}:
        for row, value in enumerate(column):
            if value[-1:] in ("\0", b"\0"):
                raise BatchError(
                    f"component {path} of datapoint {_number(row, indices)} ends with a zero, "
                    "which numpy's strings cannot hold; use np.frombuffer in a MapData, or batch "
                    "with use_list=True"
                )
        dtype = np.array(column).dtype
    else:
        row = next(i for i, x in enumerate(column) if not isinstance(x, type(column[0])))
        raise BatchError(
            f"component {path} of datapoint {_number(row, indices)}: expected {_kind(column[0])} "
            f"like the first of its batch, received {_kind(column[row])}. Convert it in a MapData, "
            "or batch with use_list=True"
        )
    batch = allocate((len(column),), dtype)
    batch[...] = column
    return batch


def _integer_dtype(column: Sequence[int], path: str, indices: Any) -> np.dtype:
    low, high = min(column), max(column)
    for dtype in (np.int32, np.int64):
        limits = np.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return np.dtype(dtype)
    row = column.index(high if high > limits.max else low)
    raise BatchError(
        f"component {path} of datapoint {_number(row, indices)}: {column[row]} does not fit into "
        "int64. Convert it in a MapData, or batch with use_list=True"
    )


def _number(row: int, indices: Any) -> int:
    return row if indices is None else int(indices[row])


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject:
            return "an array of Python objects"
        return f"{value.dtype} of shape {value.shape}"
    return f"{value!r:.40} ({type(value).__name__})"


def _structure_error(rows: Sequence[Any], indices: Any) -> BatchError:
    for row, value in enumerate(rows):
        if value is None:
            return DroppedDatapoint(_number(row, indices), "a batch")
        found = tree.difference(rows[0], value)
        if found:
            hint = "a list is read as components: convert it to an array in a MapData"
            return BatchError(
                f"datapoint {_number(row, indices)} is not built like the first of its batch: "
                f"{found}{f' ({hint})' if 'components' in found else ''}"
            )
    return BatchError("the datapoints of one batch differ in structure")
