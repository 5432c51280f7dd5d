"""Flows side by side: their components in one datapoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.base import (
    DataFlow,
    DroppedDatapoint,
    FlowIterator,
    IndexIterator,
    Pass,
    State,
)
from towerpack.dataflow.fake import FakeData
from towerpack.dataflow.merging import MergingStage
from towerpack.dataflow.statistics import walk


class JoinData(MergingStage):
    """Concatenates the components of the flows' datapoints, or merges them if they are dicts.

    Ordered; ends with the shortest flow; random access is kept if all have it.

    Flows that are shuffled are shuffled independently, so their datapoints would be paired at
    random, in another way each epoch. That is refused: put what belongs together into one source,
    or shuffle after joining. `paired=False` allows it, for pairs that are random by intent.

    >>> list(JoinData([[[1], [2]], [["a"], ["b"], ["c"]]]))
    [[1, 'a'], [2, 'b']]
    """

    drops = False

    def __init__(self, df_lists: Iterable[DataFlow | Iterable[Any]], *, paired: bool = True):
        super().__init__(df_lists)
        if paired:
            _require_pairs(self.flows)

    @property
    def random_access(self) -> bool:  # type: ignore[override]
        return all(flow.random_access and flow.drops is not True for flow in self.flows)

    @property
    def walks_indices(self) -> bool:
        # It pairs datapoints by their count: if one might be dropped, they must be iterated.
        return all(flow.walks_indices and flow.drops is False for flow in self.flows)

    def __len__(self) -> int:
        return min(len(flow) for flow in self.flows)

    def span(self) -> int:
        return min(flow.span() for flow in self.flows)

    def get(self, index: int, pass_: Pass) -> Any:
        parts = [flow.get(index, pass_.input(which)) for which, flow in enumerate(self.flows)]
        if any(part is None for part in parts):
            raise DroppedDatapoint(index, self.label())
        return join(parts)

    def get_rows(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> list[Any]:
        columns = [
            flow.get_rows(indices, pass_.input(which)) for which, flow in enumerate(self.flows)
        ]
        for column in columns:
            for row, index in zip(column, indices, strict=True):
                if row is None:
                    raise DroppedDatapoint(int(index), self.label())
        return [join(parts) for parts in zip(*columns, strict=True)]

    def gather(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> Any:
        return join(
            [flow.gather(indices, pass_.input(which)) for which, flow in enumerate(self.flows)]
        )

    def iterator(self, pass_: Pass) -> FlowIterator:
        return IndexIterator(self, pass_) if self.walks_indices else _SideBySide(self, pass_)


def _require_pairs(flows: Sequence[DataFlow]) -> None:
    """Refuses flows of which one is shuffled and another has an order of its own."""
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
    return partner.random_access and flow.span() == partner.span()


class _SideBySide(FlowIterator):
    def __init__(self, flow: JoinData, pass_: Pass):
        self._inputs = [
            below.iterator(its) for below, its in zip(flow.flows, flow.passes(pass_), strict=True)
        ]

    def __next__(self) -> Any:
        return join([next(iterator) for iterator in self._inputs])

    def state(self) -> State:
        return {"inputs": [iterator.state() for iterator in self._inputs]}

    def restore(self, state: State) -> None:
        for iterator, at in zip(self._inputs, state["inputs"], strict=True):
            iterator.restore(at)

    def close(self) -> None:
        for iterator in self._inputs:
            iterator.close()


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
