"""Flows one after another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from typing import Any

import numpy as np

from towerpack.dataflow.base import DataFlow, FlowIterator, IndexIterator, Pass, State
from towerpack.dataflow.merging import MergingStage


class ConcatData(MergingStage):
    """All datapoints of the first flow, then all of the second, and so on.

    Ordered, each once; random access is kept if all have it.

    >>> list(ConcatData([[1, 2], [3]]))
    [1, 2, 3]
    """

    def __init__(self, df_lists: Iterable[DataFlow | Iterable[Any]]):
        super().__init__(df_lists)

    def __len__(self) -> int:
        return sum(len(flow) for flow in self.flows)

    def span(self) -> int:
        return sum(flow.span() for flow in self.flows)

    def _starts(self) -> list[int]:
        return [0, *accumulate(flow.span() for flow in self.flows)]

    def get(self, index: int, pass_: Pass) -> Any:
        starts = self._starts()
        which = bisect_right(starts, index) - 1
        return self.flows[which].get(index - starts[which], pass_.input(which))

    def get_rows(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> list[Any]:
        rows: list[Any] = []
        for which, inner in self._runs(indices):
            rows += self.flows[which].get_rows(inner, pass_.input(which))
        return rows

    def gather(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> Any:
        runs = self._runs(indices)
        if len(runs) == 1:
            which, inner = runs[0]
            return self.flows[which].gather(inner, pass_.input(which))
        return super().gather(indices, pass_)

    def _runs(self, indices: Sequence[int] | np.ndarray) -> list[tuple[int, np.ndarray]]:
        """The flows that hold these indices, each with its own indices, in the order asked for."""
        starts = self._starts()
        wanted = np.asarray(indices)
        owners = np.searchsorted(starts, wanted, side="right") - 1
        runs, begin = [], 0
        for which, run in groupby(owners.tolist()):
            end = begin + len(list(run))
            runs.append((which, wanted[begin:end] - starts[which]))
            begin = end
        return runs

    def iterator(self, pass_: Pass) -> FlowIterator:
        return IndexIterator(self, pass_) if self.walks_indices else _OneByOne(self, pass_)


class _OneByOne(FlowIterator):
    def __init__(self, flow: ConcatData, pass_: Pass):
        self._flows, self._passes = flow.flows, flow.passes(pass_)
        self._open(0)

    def _open(self, which: int) -> None:
        self._which = which
        self._input = self._flows[which].iterator(self._passes[which])

    def __next__(self) -> Any:
        while True:
            try:
                return next(self._input)
            except StopIteration:
                if self._which + 1 == len(self._flows):
                    raise
                self._input.close()
                self._open(self._which + 1)

    def state(self) -> State:
        return {"which": self._which, "input": self._input.state()}

    def restore(self, state: State) -> None:
        self._input.close()
        self._open(state["which"])
        self._input.restore(state["input"])

    def close(self) -> None:
        self._input.close()
        self._which = len(self._flows) - 1
