"""Where the time of a pipeline goes: the counters of its stages, made comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.statistics import Parallel, snapshot, walk


@dataclass(frozen=True)
class StageCost:
    """What one stage has cost by itself, without its inputs."""

    label: str
    depth: int  # 0 for the last stage of the pipeline
    workers: int  # that run this stage; 0 for the consumer's own process
    parallel: bool  # its own time is waiting for the workers below it
    datapoints: int
    seconds: float  # of its own; summed over the workers

    @property
    def load(self) -> float:
        """Seconds that one worker, or this process, has spent in the stage."""
        return self.seconds / max(1, self.workers)

    @property
    def microseconds(self) -> float:
        """Of its own for each datapoint that it delivered."""
        return self.seconds / self.datapoints * 1e6 if self.datapoints else 0.0


def stage_costs(flow: DataFlow, since: Sequence[Sequence[int]] | None = None) -> list[StageCost]:
    """The cost of each stage, the last first, counted from an earlier `snapshot(flow)`.

    Stages below a parallel one count the time of all workers together. A stage that is asked for
    single datapoints by index is not counted (see `statistics`): its time is then in the stage
    above it.
    """
    stages = walk(flow)
    now = snapshot(flow)
    before = since or [[0, 0]] * len(stages)
    spent = {
        id(stage): (new[0] - old[0], new[1] - old[1])
        for stage, new, old in zip(stages, now, before, strict=True)
    }
    costs: list[StageCost] = []
    seen: set[int] = set()

    def visit(stage: DataFlow, depth: int, workers: int) -> None:
        if id(stage) in seen:
            return
        seen.add(id(stage))
        datapoints, nanoseconds = spent[id(stage)]
        parallel = isinstance(stage, Parallel)
        below = workers
        if isinstance(stage, Parallel):
            below = max(1, len(stage.parallel_statistics().workers))
        else:
            nanoseconds -= sum(spent[id(source)][1] for source in stage.inputs())
        seconds = max(0, nanoseconds) / 1e9
        costs.append(StageCost(stage.label(), depth, workers, parallel, datapoints, seconds))
        for source in stage.inputs():
            visit(source, depth + 1, below)

    visit(flow, 0, 0)
    return costs


def slowest(costs: Sequence[StageCost]) -> StageCost | None:
    """The stage whose own work takes longest in the process or worker that runs it."""
    working = [cost for cost in costs if not cost.parallel and cost.seconds > 0]
    return max(working, key=lambda cost: cost.load, default=None)
