"""Datapoints into batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from towerpack.core import tree
from towerpack.dataflow.base import DataFlow, FlowIterator, IndexIterator, Pass, ProxyDataFlow, State
from towerpack.dataflow.stacking import BatchError, stack_rows


class BatchData(ProxyDataFlow):
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
        if not isinstance(batch_size, int | np.integer) or batch_size < 1:
            raise ValueError(f"expected a positive integer batch_size, received {batch_size!r}")
        if not remainder and self.ds.random_access and len(self.ds) < batch_size:
            raise ValueError(
                f"batch_size {batch_size} is larger than the flow ({len(self.ds)} datapoints), so "
                "there would be no batch; make it smaller, or pass remainder=True"
            )
        self.batch_size, self.remainder, self.use_list = int(batch_size), remainder, use_list

    def __len__(self) -> int:
        full, rest = divmod(len(self.ds), self.batch_size)
        return full + (1 if rest and self.remainder else 0)

    def iterator(self, pass_: Pass) -> FlowIterator:
        if self.ds.random_access:
            return _IndexedBatches(self, pass_)
        return _SequentialBatches(self, pass_)

    def get(self, index: int, pass_: Pass) -> Any:
        start = index * self.batch_size
        indices = np.arange(start, min(start + self.batch_size, len(self.ds)))
        if not self.use_list:
            try:
                return self.ds.gather(indices, pass_)
            except DroppedDatapoint as dropped:
                raise BatchError(str(dropped)) from None
        return self.assemble(self.ds.get_rows(indices, pass_), pass_, indices)

    def assemble(self, rows: list[Any], pass_: Pass, indices: Any = None) -> Any:
        if self.use_list:
            return list_rows(rows)
        return stack_rows(rows, pass_.allocate, indices)

    def get_rows(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> list[Any]:
        return [self.get(int(index), pass_) for index in indices]

    def gather(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> Any:
        return DataFlow.gather(self, indices, pass_)

    @staticmethod
    def aggregate_batch(data_holder: list[Any], use_list: bool = False) -> Any:
        """A batch from a list of datapoints."""
        return list_rows(data_holder) if use_list else stack_rows(data_holder)
