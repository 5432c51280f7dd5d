"""Several flows interleaved at random."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from towerpack.dataflow.base import (
    DataFlow,
    FlowIterator,
    IndexIterator,
    Pass,
    RandomStage,
    State,
)
from towerpack.dataflow.epoch_cache import EpochCache
from towerpack.dataflow.merging import MergingStage


class RandomMixData(RandomStage, MergingStage):
    """All datapoints of all flows exactly once, randomly interleaved; each flow keeps its order.

    The flows need a `len()`. The order is fixed by (seed, epoch); random access is kept if all
    have it.

    >>> mixed = list(RandomMixData([[1, 2, 3], [10, 20]]))
    >>> [x for x in mixed if x < 10], [x for x in mixed if x >= 10]
    ([1, 2, 3], [10, 20])
    """

    reorders = True

    def __init__(self, df_lists: Iterable[DataFlow | Iterable[Any]], *, seed: int = 0):
        super().__init__(df_lists)
        self.seed = seed
        self._orders: EpochCache[tuple[np.ndarray, np.ndarray]] = EpochCache()
        try:
            self.span()
        except TypeError as error:
            raise TypeError(f"RandomMixData expected flows with a len(), but {error}") from None

    def __len__(self) -> int:
        return sum(len(flow) for flow in self.flows)

    def span(self) -> int:
        return sum(flow.span() for flow in self.flows)

    def order(self, pass_: Pass) -> tuple[np.ndarray, np.ndarray]:
        """For each index, which flow it comes from, and the index in that flow."""
        sizes = tuple(flow.span() for flow in self.flows)

        def compute() -> tuple[np.ndarray, np.ndarray]:
            owners = np.repeat(np.arange(len(sizes)), sizes)
            self.stream(pass_, "mix").generator(pass_.epoch, 0).shuffle(owners)
            inner = np.empty_like(owners)
            for which, size in enumerate(sizes):
                inner[owners == which] = np.arange(size)
            return owners, inner

        return self._orders.get((pass_.epoch, pass_.branch, sizes, self.seed), compute)

    def get(self, index: int, pass_: Pass) -> Any:
        owners, inner = self.order(pass_)
        which = int(owners[index])
        return self.flows[which].get(int(inner[index]), pass_.input(which))

    def iterator(self, pass_: Pass) -> FlowIterator:
        return IndexIterator(self, pass_) if self.walks_indices else _Mixed(self, pass_)


class _Mixed(FlowIterator):
    def __init__(self, flow: RandomMixData, pass_: Pass):
        self._owners, _ = flow.order(pass_)
        self._count = 0
        self._inputs = [
            below.iterator(its) for below, its in zip(flow.flows, flow.passes(pass_), strict=True)
        ]

    def __next__(self) -> Any:
        while self._count < len(self._owners):
            which = int(self._owners[self._count])
            self._count += 1
            try:
                return next(self._inputs[which])
            except StopIteration:
                continue  # a flow that turned out shorter, because it drops datapoints
        raise StopIteration

    def state(self) -> State:
        return {"count": self._count, "inputs": [iterator.state() for iterator in self._inputs]}

    def restore(self, state: State) -> None:
        self._count = state["count"]
        for iterator, at in zip(self._inputs, state["inputs"], strict=True):
            iterator.restore(at)

    def close(self) -> None:
        self._count = len(self._owners)
        for iterator in self._inputs:
            iterator.close()
