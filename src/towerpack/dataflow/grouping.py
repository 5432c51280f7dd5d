"""Base of stages that batch datapoints which fit together."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from towerpack.dataflow.base import FlowIterator, Pass, Stage, State
from towerpack.dataflow.blame import blame
from towerpack.dataflow.drawn import DrawnInput


class GroupingStage(Stage):
    """Base of stages that hold datapoints back until a group of them makes a batch.

    Groups come out as they get full; within a group datapoints are in order. At the end of a pass
    the incomplete groups come, the oldest first, if `remainder` is true, and are left out
    otherwise. Nothing is carried over to the next pass. A state is the input's position and the
    numbers of the datapoints held.
    """

    random_access = False
    drops = False
    remainder: bool

    @property
    def walks_indices(self) -> bool:
        return False

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} has no len(): it depends on the datapoints")

    def group_of(self, datapoint: Any) -> Hashable:
        raise NotImplementedError

    def group_size(self, group: Any) -> int:
        raise NotImplementedError

    def assemble(self, rows: list[Any], numbers: list[int], group: Any, pass_: Pass) -> Any:
        raise NotImplementedError

    def iterator(self, pass_: Pass) -> FlowIterator:
        return _Groups(self, pass_)


class _Groups(FlowIterator):
    def __init__(self, flow: GroupingStage, pass_: Pass):
        self._flow, self._pass = flow, pass_
        self._input = DrawnInput(flow.ds, pass_)
        self._groups: dict[Hashable, list[int]] = {}

    def __next__(self) -> Any:
        for number in self._input.numbers():
            group = self._group_of(number)
            members = self._groups.setdefault(group, [])
            members.append(number)
            if len(members) >= self._flow.group_size(group):
                return self._deliver(group)
        if self._flow.remainder and self._groups:
            return self._deliver(next(iter(self._groups)))
        self._groups.clear()
        self._input.held.clear()
        raise StopIteration

    def _group_of(self, number: int) -> Hashable:
        try:
            return self._flow.group_of(self._input.held[number])
        except Exception as error:
            blame(error, self._flow, number, self._pass)
            raise

    def _deliver(self, group: Hashable) -> Any:
        numbers = self._groups.pop(group)
        rows = [self._input.held.pop(number) for number in numbers]
        try:
            return self._flow.assemble(rows, numbers, group, self._pass)
        except Exception as error:
            blame(error, self._flow, numbers, self._pass)
            raise

    def state(self) -> State:
        # In the order of the groups, which is that of their oldest members.
        groups = [list(members) for members in self._groups.values()]
        return {"input": self._input.state(), "groups": groups}

    def restore(self, state: State) -> None:
        self._input.restore(state["input"], [n for group in state["groups"] for n in group])
        self._groups = {self._group_of(members[0]): list(members) for members in state["groups"]}

    def close(self) -> None:
        self._groups = {}
        self._input.close()
