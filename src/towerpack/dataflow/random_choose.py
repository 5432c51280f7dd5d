"""Datapoints from several flows, drawn at random."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from towerpack.dataflow.base import FlowIterator, Pass, RandomStage, State
from towerpack.dataflow.merging import MergingStage


class RandomChooseData(RandomStage, MergingStage):
    """For every datapoint, draws which flow it comes from; ends when the one drawn has ended.

    Give flows, which are then equally likely, or (flow, probability) pairs. Which flow is drawn is
    fixed by (seed, epoch, count). It has no `len()`. For exactly all datapoints of all flows, take
    `RandomMixData`.

    >>> flow = RandomChooseData([([1, 2, 3], 0.5), ([10, 20, 30], 0.5)])
    >>> [x for x in flow if x < 10] in ([], [1], [1, 2], [1, 2, 3])
    True
    """

    random_access = False
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

    def choose(self, epoch: int, count: int, pass_: Pass) -> int:
        draw = self.stream(pass_, "choose").generator(epoch, count).random()
        for which, below in enumerate(accumulate(self.probs)):
            if draw < below:
                return which
        return max(which for which, p in enumerate(self.probs) if p > 0)  # the sum was just below 1

    def iterator(self, pass_: Pass) -> FlowIterator:
        return _Chosen(self, pass_)


class _Chosen(FlowIterator):
    def __init__(self, flow: RandomChooseData, pass_: Pass):
        self._flow, self._pass, self._count = flow, pass_, 0
        self._inputs: list[FlowIterator] = [
            below.iterator(its) for below, its in zip(flow.flows, flow.passes(pass_), strict=True)
        ]

    def __next__(self) -> Any:
        which = self._flow.choose(self._pass.epoch, self._count, self._pass)
        datapoint = next(self._inputs[which])
        self._count += 1
        return datapoint

    def state(self) -> State:
        return {"count": self._count, "inputs": [iterator.state() for iterator in self._inputs]}

    def restore(self, state: State) -> None:
        self._count = state["count"]
        for iterator, at in zip(self._inputs, state["inputs"], strict=True):
            iterator.restore(at)

    def close(self) -> None:
        for iterator in self._inputs:
            iterator.close()
