"""Batches of datapoints that fit together: of one shape, or of similar length."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.base import Batching, DataFlow
from towerpack.dataflow.epoch import Allocate, Epoch
from towerpack.dataflow.functions import component, locate_error
from towerpack.dataflow.iterators import FlowIterator, State
from towerpack.dataflow.stacking import BatchError, list_rows, stack_rows
from towerpack.dataflow.stage.base import Stage
from towerpack.dataflow.stage.batch import checked_batch_size
from towerpack.dataflow.stage.drawn import DrawnInput


class GroupingStage(Stage):
    """Base of stages that hold datapoints back until a group of them makes a batch.

    A group is delivered when it is full, with its datapoints in order. At the end of an epoch the
    incomplete groups are delivered, the oldest first, if `remainder` is true, and left out
    otherwise. Nothing is carried over to the next epoch. A state is the input's position and the
    numbers of the datapoints that are held.
    """

    drops = False
    remainder: bool

    def indexable(self) -> bool:
        return False

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} has no len(): it depends on the datapoints")

    def group_of(self, datapoint: Any) -> Hashable:
        raise NotImplementedError

    def group_size(self, group: Any) -> int:
        raise NotImplementedError

    def assemble(self, rows: list[Any], numbers: list[int], group: Any, epoch: Epoch) -> Any:
        raise NotImplementedError

    def sequential(self, epoch: Epoch) -> FlowIterator:
        return _Groups(self, epoch)


class _Groups(FlowIterator):
    def __init__(self, flow: GroupingStage, epoch: Epoch):
        self._flow, self._epoch = flow, epoch
        self._input = DrawnInput(flow.ds, epoch)
        self._groups: dict[Hashable, list[int]] = {}

    def draw(self) -> Any:
        for number in self._input.numbers():
            group = self._group_of(number)
            members = self._groups.setdefault(group, [])
            members.append(number)
            if len(members) >= self._flow.group_size(group):
                return self._deliver(group)
        if self._flow.remainder and self._groups:
            return self._deliver(next(iter(self._groups)))
        self._groups.clear()
        self._input.held.clear()
        raise StopIteration

    def _group_of(self, number: int) -> Hashable:
        try:
            return self._flow.group_of(self._input.held[number])
        except Exception as error:
            locate_error(error, self._flow, number, self._epoch)
            raise

    def _deliver(self, group: Hashable) -> Any:
        numbers = self._groups.pop(group)
        rows = [self._input.held.pop(number) for number in numbers]
        try:
            return self._flow.assemble(rows, numbers, group, self._epoch)
        except Exception as error:
            locate_error(error, self._flow, numbers, self._epoch)
            raise

    def state(self) -> State:
        # In the order of the groups, which is that of their oldest members.
        groups = [list(members) for members in self._groups.values()]
        return {"input": self._input.state(), "groups": groups}

    def restore(self, state: State) -> None:
        self._input.restore(state["input"], [n for group in state["groups"] for n in group])
        self._groups = {self._group_of(members[0]): list(members) for members in state["groups"]}

    def close(self) -> None:
        self._groups = {}
        self._input.close()


class BatchDataByShape(GroupingStage):
    """Batches of `batch_size` datapoints whose component `idx` has the same shape.

    A batch is delivered as soon as there are enough datapoints of one shape; each datapoint once.
    Incomplete batches are delivered at the end of an epoch if `remainder=True`; otherwise rare
    shapes are left out.

    >>> flow = BatchDataByShape([["a", np.zeros(2)], ["b", np.zeros(3)], ["c", np.zeros(2)]], 2, 1)
    >>> [batch[0].tolist() for batch in flow]
    [['a', 'c']]
    """

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        batch_size: int,
        idx: int | str,
        *,
        remainder: bool = False,
    ):
        super().__init__(ds)
        self.batch_size, self.idx = checked_batch_size(batch_size), idx
        self.remainder = remainder

    def batching(self) -> Batching:
        return Batching(self.batch_size, exact=False)

    def group_of(self, datapoint: Any) -> Hashable:
        return np.shape(component(datapoint, self.idx))

    def group_size(self, group: Any) -> int:
        return self.batch_size

    def assemble(self, rows: list[Any], numbers: list[int], group: Any, epoch: Epoch) -> Any:
        return stack_rows(rows, epoch.allocate, numbers)


class BucketBatchData(GroupingStage):
    """Batches of sequences of similar length, padded to the longest of the batch.

    `boundaries` divide the lengths: a sequence of length n goes into the first bucket whose
    boundary is at least n, and the last bucket takes longer ones. `batch_size` is one number, or a
    list with one for each bucket (one more than the boundaries), larger for the short ones. Every
    datapoint comes once; the incomplete buckets are delivered at the end of an epoch, unless
    `remainder=False`.

    `length` defines the length of a datapoint: the component whose first axis counts (position or
    key), or a function. Components of different shapes are padded at the end of each axis with
    `pad_value`, one for all or a dict by component; a component that is a plain list of numbers
    becomes an array. To have the lengths in the batch, add them as a component in a MapData.

    >>> flow = BucketBatchData([[[1, 2]], [[3]], [[4, 5, 6]]], 2, boundaries=[2])
    >>> [batch[0].tolist() for batch in flow]
    [[[1, 2], [3, 0]], [[4, 5, 6]]]
    """

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        batch_size: int | Sequence[int],
        boundaries: Sequence[int],
        *,
        length: int | str | Callable[[Any], int] = 0,
        pad_value: Any = 0,
        remainder: bool = True,
    ):
        super().__init__(ds)
        self.boundaries = [int(boundary) for boundary in boundaries]
        if sorted(set(self.boundaries)) != self.boundaries:
            raise ValueError(f"expected boundaries that grow, received {self.boundaries}")
        buckets = len(self.boundaries) + 1
        sizes = [batch_size] * buckets if isinstance(batch_size, int) else list(batch_size)
        if len(sizes) != buckets:
            raise ValueError(
                f"expected {buckets} batch sizes, one more than the boundaries, received "
                f"{len(sizes)}"
            )
        self.batch_sizes = [checked_batch_size(size) for size in sizes]
        self.length, self.pad_value, self.remainder = length, pad_value, remainder

    def group_of(self, datapoint: Any) -> Hashable:
        if callable(self.length):
            length = self.length(datapoint)
        else:
            length = len(component(datapoint, self.length))
        return int(np.searchsorted(self.boundaries, length, side="left"))

    def group_size(self, group: Any) -> int:
        return self.batch_sizes[group]

    def assemble(self, rows: list[Any], numbers: list[int], group: Any, epoch: Epoch) -> Any:
        return pad_rows(rows, self.pad_value, epoch.allocate, numbers)


def pad_rows(
    rows: Sequence[Any],
    pad_value: Any = 0,
    allocate: Allocate = np.empty,
    indices: Sequence[int] | np.ndarray | None = None,
) -> Any:
    """One batch, in which components of different shapes are padded at the end of each axis.

    `pad_value` is one for all components, or a dict by position or key. A component that is a list
    of numbers becomes an array of int32 or float32.

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
