"""Only the datapoints that pass a test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.base import (
    DataFlow,
    FlowIterator,
    IndexIterator,
    Pass,
    Stage,
    State,
)
from towerpack.dataflow.blame import blame, name_of


class FilterData(Stage):
    """Keeps the datapoints for which `func` returns true.

    Ordered, each once. It has no `len()`. By index the others are None, so workers over this flow
    still share its indices; a stage above that counts datapoints (BatchData) has to iterate.

    >>> list(FilterData(range(6), lambda x: x % 2 == 0))
    [0, 2, 4]
    """

    drops = True

    def __init__(self, ds: DataFlow | Iterable[Any], func: Callable[[Any], Any]):
        super().__init__(ds)
        if not callable(func):
            raise TypeError(f"expected a function, received {func!r} ({type(func).__name__})")
        self.func = func

    def label(self) -> str:
        return f"{type(self).__name__}({name_of(self.func)})"

    def __len__(self) -> int:
        raise TypeError(f"{self.label()} has no len(): how many datapoints pass is not known")

    def keeps(self, datapoint: Any, index: int, pass_: Pass) -> bool:
        try:
            return bool(self.func(datapoint))
        except Exception as error:
            blame(error, self, index, pass_)
            raise

    def get(self, index: int, pass_: Pass) -> Any:
        datapoint = self.ds.get(index, pass_)
        if datapoint is None or not self.keeps(datapoint, index, pass_):
            return None
        return datapoint

    def get_rows(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> list[Any]:
        return [
            row if row is not None and self.keeps(row, index, pass_) else None
            for row, index in zip(self.ds.get_rows(indices, pass_), indices, strict=True)
        ]

    def iterator(self, pass_: Pass) -> FlowIterator:
        return IndexIterator(self, pass_) if self.walks_indices else _Kept(self, pass_)


class _Kept(FlowIterator):
    def __init__(self, flow: FilterData, pass_: Pass):
        self._flow, self._pass = flow, pass_
        self._input, self._index = flow.ds.iterator(pass_), 0

    def __next__(self) -> Any:
        while True:
            datapoint = next(self._input)
            index, self._index = self._index, self._index + 1
            if self._flow.keeps(datapoint, index, self._pass):
                return datapoint

    def state(self) -> State:
        return {"input": self._input.state(), "index": self._index}

    def restore(self, state: State) -> None:
        self._input.restore(state["input"])
        self._index = state["index"]

    def close(self) -> None:
        self._input.close()
