"""Stages over several flows: one after another, side by side, or interleaved at random."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from towerpack.dataflow.base import DataFlow, Indices
from towerpack.dataflow.epoch import Epoch, EpochCache, RandomStage
from towerpack.dataflow.iterators import FlowIterator, InputsIterator, State
from towerpack.dataflow.source.fake import FakeData
from towerpack.dataflow.stage.base import IndexStage, MergingStage, refuse_dropped, runs
from towerpack.dataflow.statistics import walk


class ConcatData(IndexStage, MergingStage):
    """All datapoints of the first flow, then all of the second, and so on.

    Ordered, each once; random access is kept if all have it.

    >>> list(ConcatData([[1, 2], [3]]))
    [1, 2, 3]
    """

    def __init__(self, df_lists: Iterable[DataFlow | Iterable[Any]]):
        super().__init__(df_lists)

    def __len__(self) -> int:
        return sum(len(flow) for flow in self.flows)

    def num_indices(self) -> int:
        return sum(flow.num_indices() for flow in self.flows)

    def parts(self, indices: np.ndarray, epoch: Epoch) -> Iterable[tuple[DataFlow, Any, Epoch]]:
        starts = np.array([0, *accumulate(flow.num_indices() for flow in self.flows)])
        owners = np.searchsorted(starts, indices, side="right") - 1
        for which, inner in runs(owners, indices - starts[owners]):
            yield self.flows[which], inner, epoch.input(which)

    def sequential(self, epoch: Epoch) -> FlowIterator:
        return _OneByOne(self, epoch)


class _OneByOne(FlowIterator):
    def __init__(self, flow: ConcatData, epoch: Epoch):
        self._flows, self._epoch = flow.flows, epoch
        self._open(0)

    def _open(self, which: int) -> None:
        self._which = which
        self._input = self._flows[which].open(self._epoch.input(which))

    def draw(self) -> Any:
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


class JoinData(MergingStage):
    """Concatenates the components of the flows' datapoints, or merges them if they are dicts.

    Ordered; ends with the shortest flow; random access is kept if all have it.

    Flows that are shuffled are shuffled independently, so their datapoints would be paired at
    random, and differently in each epoch. That is refused: put what belongs together into one
    source, or shuffle after joining. `paired=False` allows it, for pairs that should be random.

    >>> list(JoinData([[[1], [2]], [["a"], ["b"], ["c"]]]))
    [[1, 'a'], [2, 'b']]
    """

    counts_datapoints = True

    def __init__(self, df_lists: Iterable[DataFlow | Iterable[Any]], *, paired: bool = True):
        super().__init__(df_lists)
        if paired:
            _require_pairs(self.flows)

    def __len__(self) -> int:
        return min(len(flow) for flow in self.flows)

    def num_indices(self) -> int:
        return min(flow.num_indices() for flow in self.flows)

    def rows(self, indices: Indices, epoch: Epoch) -> list[Any]:
        columns = [flow.read(indices, epoch.input(i)) for i, flow in enumerate(self.flows)]
        for column in columns:
            refuse_dropped(self, column, indices)
        return [join(parts) for parts in zip(*columns, strict=True)]

    def gather(self, indices: Indices, epoch: Epoch) -> Any:
        return join([flow.read_batch(indices, epoch.input(i)) for i, flow in enumerate(self.flows)])

    def sequential(self, epoch: Epoch) -> FlowIterator:
        return _SideBySide(self.flows, epoch)


class _SideBySide(InputsIterator):
    counts = False

    def draw(self) -> Any:
        return join([next(iterator) for iterator in self.inputs])


def join(parts: Sequence[Any]) -> Any:
    """One datapoint of several: all dicts, or all lists and tuples."""
    if all(isinstance(part, dict) for part in parts):
        merged: dict[Any, Any] = {}
        for part in parts:
            twice = merged.keys() & part.keys()
            if twice:
                raise ValueError(
                    f"JoinData: two flows have the key {min(map(repr, twice))}; rename one in a "
                    "MapData, or leave it out with SelectComponent"
                )
            merged.update(part)
        return merged
    if all(isinstance(part, list | tuple) for part in parts):
        return [component for part in parts for component in part]
    kinds = ", ".join(type(part).__name__ for part in parts)
    raise TypeError(
        "JoinData: expected datapoints that are all dicts, or all lists or tuples, received "
        f"{kinds}"
    )


def _require_pairs(flows: Sequence[DataFlow]) -> None:
    """Refuses a shuffled flow beside one that has an order of its own."""
    shuffled = {
        which: stage.label()
        for which, flow in enumerate(flows)
        for stage in walk(flow)
        if stage.reorders
    }
    for which, shuffling in shuffled.items():
        for other, flow in enumerate(flows):
            if other == which or not _has_order(flow, other in shuffled, flows[which]):
                continue
            raise ValueError(
                f"JoinData would pair datapoints at random: {shuffling} in flow {which} gives them "
                "another order each epoch, and flow "
                f"{other} ({shuffled.get(other, flow.label())}) does not follow it. Put what "
                "belongs together into one source: DataFromArrays(images, labels, shuffle=True); "
                "or pass shuffle=False to the sources and shuffle after joining: "
                "ShuffleData(JoinData([...])). For random pairs by intent pass paired=False"
            )


def _has_order(flow: DataFlow, shuffled: bool, partner: DataFlow) -> bool:
    """Whether it matters which datapoints of this flow meet which of the shuffled partner."""
    if shuffled:
        return True
    sources = [stage for stage in walk(flow) if not stage.inputs()]
    if not flow.random_access or all(isinstance(source, FakeData) for source in sources):
        return False  # a generator, or noise
    return partner.random_access and flow.num_indices() == partner.num_indices()


class RandomMixData(RandomStage, IndexStage, MergingStage):
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
            self.num_indices()
        except TypeError as error:
            raise TypeError(f"RandomMixData expected flows with a len(), but {error}") from None

    def __len__(self) -> int:
        return sum(len(flow) for flow in self.flows)

    def num_indices(self) -> int:
        return sum(flow.num_indices() for flow in self.flows)

    def order(self, epoch: Epoch) -> tuple[np.ndarray, np.ndarray]:
        """For each index, which flow it comes from, and the index in that flow."""
        sizes = tuple(flow.num_indices() for flow in self.flows)

        def compute() -> tuple[np.ndarray, np.ndarray]:
            owners = np.repeat(np.arange(len(sizes)), sizes)
            self.stream(epoch, "mix").generator(epoch.number, 0).shuffle(owners)
            inner = np.empty_like(owners)
            for which, size in enumerate(sizes):
                inner[owners == which] = np.arange(size)
            return owners, inner

        return self._orders.get((epoch.number, epoch.branch, sizes, self.seed), compute)

    def parts(self, indices: np.ndarray, epoch: Epoch) -> Iterable[tuple[DataFlow, Any, Epoch]]:
        owners, inner = self.order(epoch)
        for which, part in runs(owners[indices], inner[indices]):
            yield self.flows[which], part, epoch.input(which)

    def sequential(self, epoch: Epoch) -> FlowIterator:
        return _Mixed(self, epoch)


class _Mixed(InputsIterator):
    def __init__(self, flow: RandomMixData, epoch: Epoch):
        super().__init__(flow.flows, epoch)
        self._owners, _ = flow.order(epoch)

    def draw(self) -> Any:
        while self.count < len(self._owners):
            which = int(self._owners[self.count])
            self.count += 1
            try:
                return next(self.inputs[which])
            except StopIteration:
                continue  # this flow is shorter than expected, because it drops datapoints
        raise StopIteration

    def close(self) -> None:
        super().close()
        self.count = len(self._owners)


class RandomChooseData(RandomStage, MergingStage):
    """Draws for every datapoint which flow it comes from; ends when the drawn flow has ended.

    Give flows, which are then equally likely, or (flow, probability) pairs. Which flow is drawn is
    fixed by (seed, epoch, count). It has no `len()`. `RandomMixData` gives all datapoints of all
    flows exactly once.

    >>> flow = RandomChooseData([([1, 2, 3], 0.5), ([10, 20, 30], 0.5)])
    >>> [x for x in flow if x < 10] in ([], [1], [1, 2], [1, 2, 3])
    True
    """

    reorders = True

    def __init__(self, df_lists: Iterable[Any], *, seed: int = 0):
        pairs = list(df_lists)
        weighted = [isinstance(pair, tuple) for pair in pairs]
        if any(weighted) and not all(weighted):
            raise ValueError("expected flows, or (flow, probability) pairs, received both")
        super().__init__(pair[0] if isinstance(pair, tuple) else pair for pair in pairs)
        equal = 1 / len(pairs)
        self.probs = [float(p[1]) if isinstance(p, tuple) else equal for p in pairs]
        if any(p < 0 for p in self.probs) or not math.isclose(sum(self.probs), 1, abs_tol=1e-6):
            raise ValueError(
                f"expected probabilities that add up to 1, received {self.probs} with sum "
                f"{sum(self.probs):.6g}"
            )
        self.seed = seed

    def choose(self, count: int, epoch: Epoch) -> int:
        draw = self.stream(epoch, "choose").generator(epoch.number, count).random()
        for which, below in enumerate(accumulate(self.probs)):
            if draw < below:
                return which
        return max(which for which, p in enumerate(self.probs) if p > 0)  # the sum was just below 1

    def sequential(self, epoch: Epoch) -> FlowIterator:
        return _Chosen(self, epoch)


class _Chosen(InputsIterator):
    def __init__(self, flow: RandomChooseData, epoch: Epoch):
        super().__init__(flow.flows, epoch)
        self._flow, self._epoch = flow, epoch

    def draw(self) -> Any:
        datapoint = next(self.inputs[self._flow.choose(self.count, self._epoch)])
        self.count += 1
        return datapoint
