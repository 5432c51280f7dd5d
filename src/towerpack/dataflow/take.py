"""The first datapoints of a flow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.base import (
    CountingStage,
    DataFlow,
    DroppedDatapoint,
    FlowIterator,
    IndexIterator,
    Pass,
    State,
)


class TakeData(CountingStage):
    """The first `size` datapoints of each pass, or all if there are fewer.

    Ordered, each once; random access is kept.

    >>> list(TakeData([5, 6, 7], 2))
    [5, 6]
    """

    def __init__(self, ds: DataFlow | Iterable[Any], size: int):
        super().__init__(ds)
        if size < 0:
            raise ValueError(f"expected a size of 0 or more, received {size}")
        self._size = int(size)

    def __len__(self) -> int:
        return min(self._size, len(self.ds))

    def span(self) -> int:
        return min(self._size, self.ds.span())

    def get(self, index: int, pass_: Pass) -> Any:
        datapoint = self.ds.get(index, pass_)
        if datapoint is None:
            raise DroppedDatapoint(index, self.label())
        return datapoint

    def get_rows(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> list[Any]:
        rows = self.ds.get_rows(indices, pass_)
        for row, index in zip(rows, indices, strict=True):
            if row is None:
                raise DroppedDatapoint(int(index), self.label())
        return rows

    def gather(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> Any:
        return self.ds.gather(indices, pass_)

    def iterator(self, pass_: Pass) -> FlowIterator:
        return IndexIterator(self, pass_) if self.walks_indices else _First(self, pass_)


class _First(FlowIterator):
    def __init__(self, flow: TakeData, pass_: Pass):
        self._input, self._left = flow.ds.iterator(pass_), flow._size

    def __next__(self) -> Any:
        if self._left <= 0:
            raise StopIteration
        datapoint = next(self._input)
        self._left -= 1
        return datapoint

    def state(self) -> State:
        return {"input": self._input.state(), "left": self._left}

    def restore(self, state: State) -> None:
        self._input.restore(state["input"])
        self._left = state["left"]

    def close(self) -> None:
        self._input.close()
        self._left = 0
