"""Datapoints into batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from towerpack.core import tree
from towerpack.dataflow.base import Batching, DataFlow, Indices, iterates_by_index, states
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.functions import locate_error
from towerpack.dataflow.iterators import FlowIterator, IndexIterator, InputIterator
from towerpack.dataflow.stacking import BatchError, DroppedDatapoint, list_rows, stack_rows
from towerpack.dataflow.stage.base import Stage
from towerpack.dataflow.statistics import clock


class BatchData(Stage):
    """Stacks `batch_size` datapoints into one, each component along a new first axis.

    Ordered, every datapoint once. With `remainder=False` (the default) an incomplete last batch is
    left out; with True it is a smaller batch. `use_list=True` gives lists of components instead of
    arrays, for components of different shapes.

    Keeps random access: over arrays a batch is one indexing call per component, otherwise rows are
    written into one preallocated array. Python ints become int32, floats float32, bools stay bool.

    >>> from towerpack.dataflow import DataFromList
    >>> [batch[0].tolist() for batch in BatchData(DataFromList([[1], [2], [3]]), 2)]
    [[1, 2]]
    """

    counts_datapoints = True

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        batch_size: int,
        remainder: bool = False,
        use_list: bool = False,
    ):
        super().__init__(ds)
        self.batch_size = checked_batch_size(batch_size)
        self.remainder, self.use_list = remainder, use_list
        if not remainder and self.ds.random_access and self.ds.num_indices() < batch_size:
            raise ValueError(
                f"batch_size {batch_size} is larger than the flow ({self.ds.num_indices()} "
                "datapoints), so there would be no batch; make it smaller, or pass remainder=True"
            )

    def __len__(self) -> int:
        return self._batches(len(self.ds))

    def num_indices(self) -> int:
        return self._batches(self.ds.num_indices())

    def _batches(self, datapoints: int) -> int:
        full, rest = divmod(datapoints, self.batch_size)
        return full + (1 if rest and self.remainder else 0)

    def batching(self) -> Batching:
        exact = not self.remainder and not self.use_list and states(type(self), "batching")
        return Batching(self.batch_size, exact)

    def iterator(self, epoch: Epoch) -> FlowIterator:
        if iterates_by_index(self.ds):
            return _IndexedBatches(self, epoch)
        return _SequentialBatches(self, epoch)

    def rows(self, indices: Indices, epoch: Epoch) -> list[Any]:
        size, end = self.batch_size, self.ds.num_indices()
        return [
            self.batch(np.arange(index * size, min((index + 1) * size, end)), epoch)
            for index in map(int, indices)
        ]

    def batch(self, indices: np.ndarray, epoch: Epoch) -> Any:
        """The batch of the input's datapoints at these indices; none of them may be dropped."""
        if self.use_list:
            return self.assemble(self.ds.read(indices, epoch), epoch, indices)
        try:
            return self.ds.read_batch(indices, epoch)
        except BatchError as error:
            locate_error(error, self, indices, epoch)
            raise

    def assemble(self, rows: list[Any], epoch: Epoch, indices: Any) -> Any:
        """The batch of these datapoints."""
        try:
            if self.use_list:
                return list_rows(rows, indices)
            return stack_rows(rows, epoch.allocate, indices)
        except BatchError as error:
            locate_error(error, self, indices, epoch)
            raise

    @staticmethod
    def aggregate_batch(data_holder: list[Any], use_list: bool = False) -> Any:
        """A batch from a list of datapoints."""
        return list_rows(data_holder) if use_list else stack_rows(data_holder)


class _IndexedBatches(IndexIterator):
    """Reads the input by index; batches with dropped datapoints are filled up with later ones."""

    __next__ = FlowIterator.__next__

    def __init__(self, flow: BatchData, epoch: Epoch):
        super().__init__(flow.ds, epoch)
        self._flow = flow
        # Rows are read from an input that cannot gather, so that a dropped one costs nothing.
        self._by_rows = flow.use_list or type(flow.ds).gather is DataFlow.gather

    def draw(self) -> Any:
        flow, stop = self._flow, self._index + self._flow.batch_size
        if stop > self._size:
            return self._fill_up(None)
        indices, rows = np.arange(self._index, stop), None
        try:
            if self._by_rows:
                rows = flow.ds.read(indices, self._epoch)
                batch = flow.assemble(rows, self._epoch, indices)
            else:
                batch = flow.batch(indices, self._epoch)
        except BatchError as error:
            # Dropped datapoints are only looked for after an error: the usual case stays fast.
            if rows is not None and any(row is None for row in rows):
                return self._fill_up(rows)
            if not isinstance(error, DroppedDatapoint):
                raise
            self._by_rows = True
            return self._fill_up(None)
        self._index = stop
        return batch

    def next_stack(self, count: int) -> tuple[Any, int] | None:
        size, begun = self._flow.batch_size, clock()
        count = min(count, (self._size - self._index) // size)
        if self._by_rows or count < 2:
            return None
        stop = self._index + count * size
        try:
            rows = self._flow.ds.read_batch(np.arange(self._index, stop), self._epoch)
        except Exception:  # noqa: BLE001 (`next` meets it again, after the batches before it)
            return None
        self._index = stop
        self.counter.add(count, begun)
        return tree.map_leaves(lambda x: x.reshape(count, size, *x.shape[1:]), rows), count

    def _fill_up(self, rows: list[Any] | None) -> Any:
        """A batch of those of these rows that are not dropped, and of as many later ones as it
        needs."""
        flow, index = self._flow, self._index
        batch: list[Any] = []
        indices: list[int] = []
        while True:
            stop = min(index + flow.batch_size - len(batch), self._size)
            if rows is None:
                rows = flow.ds.read(np.arange(index, stop), self._epoch)
            for number, row in enumerate(rows, index):
                if row is not None:
                    batch.append(row)
                    indices.append(number)
            index, rows = stop, None
            if len(batch) == flow.batch_size or index == self._size:
                break
        if not batch or (len(batch) < flow.batch_size and not flow.remainder):
            self._index = self._size
            raise StopIteration
        result = flow.assemble(batch, self._epoch, indices)
        self._index = index
        return result


class _SequentialBatches(InputIterator):
    """Draws datapoints from the input's iterator; a batch in which one raises is lost."""

    def __init__(self, flow: BatchData, epoch: Epoch):
        super().__init__(flow.ds.open(epoch), "count")
        self._flow, self._epoch = flow, epoch

    def draw(self) -> Any:
        flow, first = self._flow, self.count  # datapoints in batches so far, for error messages
        # Workers below may be able to stack their datapoints themselves, in shared memory.
        try:
            made = None if flow.use_list else self.input.next_batch(flow.batch_size, first)
        except BatchError as error:
            locate_error(error, flow, range(first, first + flow.batch_size), self._epoch)
            raise
        if made is not None:
            batch, count = made
            if count < flow.batch_size and not flow.remainder:
                # It was the last. Only an input at its end keeps its workers for the next epoch.
                self.input.next_batch(flow.batch_size, first + count)
                raise StopIteration
            self.count += count
            return batch
        take, rows = self.input.__next__, list[Any]()
        try:
            while len(rows) < flow.batch_size:
                rows.append(take())
        except StopIteration:
            if not rows or not flow.remainder:
                raise
        self.count += len(rows)
        return flow.assemble(rows, self._epoch, range(first, self.count))


def checked_batch_size(batch_size: Any) -> int:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer):
        raise TypeError(f"expected an integer batch_size, received {batch_size!r}")
    if batch_size < 1:
        raise ValueError(f"expected a positive batch_size, received {batch_size}")
    return int(batch_size)
