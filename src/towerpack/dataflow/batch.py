"""Datapoints into batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from towerpack.core import tree
from towerpack.dataflow.base import (
    CountingStage,
    DataFlow,
    DroppedDatapoint,
    FlowIterator,
    Pass,
    State,
)
from towerpack.dataflow.blame import blame
from towerpack.dataflow.iterators import Accept, checked_index
from towerpack.dataflow.stacking import Allocate, BatchError, list_rows, stack_rows
from towerpack.dataflow.statistics import clock


class BatchData(CountingStage):
    """Stacks `batch_size` datapoints into one, each component along a new first axis.

    Ordered, every datapoint once. With `remainder=False` (the default) an incomplete last batch is
    left out; with True it comes, smaller. `use_list=True` gives lists of components instead of
    arrays, for components of different shapes.

    Keeps random access: over arrays a batch is one indexing call per component, otherwise rows are
    written into one preallocated array. Python ints become int32, floats float32, bools stay bool.

    >>> from towerpack.dataflow import DataFromList
    >>> [batch[0].tolist() for batch in BatchData(DataFromList([[1], [2], [3]], shuffle=False), 2)]
    [[1, 2]]
    """

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
        if not remainder and self.ds.random_access and self.ds.span() < batch_size:
            raise ValueError(
                f"batch_size {batch_size} is larger than the flow ({self.ds.span()} datapoints), "
                "so there would be no batch; make it smaller, or pass remainder=True"
            )

    def __len__(self) -> int:
        return self._batches(len(self.ds))

    def span(self) -> int:
        return self._batches(self.ds.span())

    def _batches(self, datapoints: int) -> int:
        full, rest = divmod(datapoints, self.batch_size)
        return full + (1 if rest and self.remainder else 0)

    def iterator(self, pass_: Pass) -> FlowIterator:
        if self.ds.walks_indices:
            return _IndexedBatches(self, pass_)
        return _SequentialBatches(self, pass_)

    def get(self, index: int, pass_: Pass) -> Any:
        start = index * self.batch_size
        return self.batch(np.arange(start, min(start + self.batch_size, self.ds.span())), pass_)

    def batch(self, indices: np.ndarray, pass_: Pass) -> Any:
        """The batch of the input's datapoints at these indices; none of them may be dropped."""
        if self.use_list:
            return self.assemble(self.ds.get_rows(indices, pass_), pass_, indices)
        try:
            return self.ds.gather(indices, pass_)
        except BatchError as error:
            blame(error, self, indices, pass_)
            raise

    def assemble(self, rows: list[Any], pass_: Pass, indices: Any) -> Any:
        """The batch of these datapoints."""
        try:
            if self.use_list:
                return list_rows(rows, indices)
            return stack_rows(rows, pass_.allocate, indices)
        except BatchError as error:
            blame(error, self, indices, pass_)
            raise

    @staticmethod
    def aggregate_batch(data_holder: list[Any], use_list: bool = False) -> Any:
        """A batch from a list of datapoints."""
        return list_rows(data_holder) if use_list else stack_rows(data_holder)


class _IndexedBatches(FlowIterator):
    """Walks the input's indices; where some are dropped, further ones fill the batch up."""

    def __init__(self, flow: BatchData, pass_: Pass):
        self._flow, self._pass = flow, pass_
        self._index, self._size = 0, flow.ds.span()
        # An input that has no quicker way is asked for rows, so that a drop costs nothing.
        self._by_rows = flow.use_list or type(flow.ds).gather is DataFlow.gather
        self.stacks = not self._by_rows

    def __next__(self) -> Any:
        flow, stop = self._flow, self._index + self._flow.batch_size
        if stop > self._size:
            return self._fill_up(None)
        indices, rows = np.arange(self._index, stop), None
        try:
            if self._by_rows:
                rows = flow.ds.get_rows(indices, self._pass)
                batch = flow.assemble(rows, self._pass, indices)
            else:
                batch = flow.batch(indices, self._pass)
        except BatchError as error:
            # To look for dropped ones only when something is wrong makes the usual case quick.
            if rows is not None and any(row is None for row in rows):
                return self._fill_up(rows)
            if not isinstance(error, DroppedDatapoint):
                raise
            self._by_rows = True
            return self._fill_up(None)
        self._index = stop
        return batch

    def next_stack(self, count: int, allocate: Allocate, accept: Accept) -> int:
        size, begun = self._flow.batch_size, clock()
        count = min(count, (self._size - self._index) // size)
        if self._by_rows or count < 2:
            return 0
        stop = self._index + count * size
        try:
            rows = self._flow.ds.gather(
                np.arange(self._index, stop), replace(self._pass, allocate=allocate)
            )
        except Exception:  # noqa: BLE001 (`next` meets it again, after the batches before it)
            return 0
        if not accept(tree.map_leaves(lambda x: x.reshape(count, size, *x.shape[1:]), rows)):
            return 0
        self._index = stop
        self.counter.add(count, begun)
        return count

    def _fill_up(self, rows: list[Any] | None) -> Any:
        """A batch of what is left of these rows, or of none, and of as many further as it takes."""
        flow, index = self._flow, self._index
        batch: list[Any] = []
        indices: list[int] = []
        while True:
            stop = min(index + flow.batch_size - len(batch), self._size)
            if rows is None:
                rows = flow.ds.get_rows(np.arange(index, stop), self._pass)
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
        result = flow.assemble(batch, self._pass, indices)
        self._index = index
        return result

    def state(self) -> State:
        return {"index": self._index}

    def restore(self, state: State) -> None:
        self._index = checked_index(state["index"], self._size)

    def close(self) -> None:
        self._index = self._size


class _SequentialBatches(FlowIterator):
    """Draws datapoints from the input's iterator; a batch in which one raises is lost."""

    def __init__(self, flow: BatchData, pass_: Pass):
        self._flow, self._pass = flow, pass_
        self._input = flow.ds.iterator(pass_)
        self._count = 0  # datapoints of this pass in batches so far, for error messages
        # Workers below may be able to stack their datapoints themselves, in shared memory.
        self._next_batch = None if flow.use_list else getattr(self._input, "next_batch", None)

    def __next__(self) -> Any:
        flow, first = self._flow, self._count
        if self._next_batch is not None:
            try:
                batch, count = self._next_batch(flow.batch_size, first)
            except BatchError as error:
                blame(error, flow, range(first, first + flow.batch_size), self._pass)
                raise
            if count < flow.batch_size and not flow.remainder:
                # It was the last. Only an input that has ended keeps its workers for the next pass.
                self._next_batch(flow.batch_size, self._count + count)
                raise StopIteration
            self._count += count
            return batch
        take, rows = self._input.__next__, list[Any]()
        try:
            while len(rows) < flow.batch_size:
                rows.append(take())
        except StopIteration:
            if not rows or not flow.remainder:
                raise
        self._count += len(rows)
        return flow.assemble(rows, self._pass, range(first, self._count))

    def state(self) -> State:
        return {"input": self._input.state(), "count": self._count}

    def restore(self, state: State) -> None:
        self._input.restore(state["input"])
        self._count = state["count"]

    def close(self) -> None:
        self._input.close()


def checked_batch_size(batch_size: Any) -> int:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer):
        raise TypeError(f"expected an integer batch_size, received {batch_size!r}")
    if batch_size < 1:
        raise ValueError(f"expected a positive batch_size, received {batch_size}")
    return int(batch_size)
