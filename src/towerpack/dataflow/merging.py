"""Base of stages with several inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from towerpack.dataflow.base import DataFlow, Pass, as_flow


class MergingStage(DataFlow):
    """Reads from several flows, `self.flows`, each in a branch of its own.

    So two inputs with equal seeds, or one flow given twice, are not shuffled alike.
    """

    def __init__(self, flows: Iterable[DataFlow | Iterable[Any]]):
        if isinstance(flows, DataFlow):
            raise TypeError(f"expected a list of flows, received one {flows.label()}")
        self.flows = [as_flow(flow) for flow in flows]
        if not self.flows:
            raise ValueError(f"{type(self).__name__} expected at least one flow, received none")
        self.height = 1 + max(flow.height for flow in self.flows)

    def inputs(self) -> Sequence[DataFlow]:
        return self.flows

    @property
    def random_access(self) -> bool:  # type: ignore[override]
        return all(flow.random_access for flow in self.flows)

    @property
    def drops(self) -> bool | None:  # type: ignore[override]
        answers = {flow.drops for flow in self.flows}
        return True if True in answers else None if None in answers else False

    @property
    def walks_indices(self) -> bool:
        return self.random_access and all(flow.walks_indices for flow in self.flows)

    def passes(self, pass_: Pass) -> list[Pass]:
        return [pass_.input(which) for which in range(len(self.flows))]
