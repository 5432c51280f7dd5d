"""What each stage of a pipeline has delivered and cost.

Every flow has `flow.statistics`, a `Counter` of the datapoints that `read`, `read_batch` and its
iterators' `__next__` have delivered and of the time that this took, inputs included. Where speed
matters these are called once per batch or chunk, so counting costs next to nothing. A datapoint
that is read alone by its index is not counted.

The protocol for stages whose inputs run in other processes or threads:

- A worker iterates over its own copy of the flow, whose counters begin at zero. Now and then it
  sends `snapshot(ds)`, a list of small lists of ints. The parent adds it to its own copy by
  `merge(ds, new, old)`, where `old` is the previous snapshot of that worker. So the counters of the
  flows below a parallel stage are sums over the workers, in worker time.
- The stage itself implements `parallel_statistics() -> ParallelStatistics`: one
  `WorkerStatistics` for each worker, and how full the queue to the consumer was. A stage with this
  method states that the time of its inputs is not part of its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from towerpack.dataflow.base import DataFlow

clock = time.perf_counter_ns


class Counter:
    """The datapoints that a stage has delivered, and the nanoseconds this took, inputs included.

    A copy begins at zero. If several threads use a stage, its counts are approximate: a lock would
    cost too much.
    """

    __slots__ = ("datapoints", "nanoseconds")

    def __init__(self) -> None:
        self.datapoints = self.nanoseconds = 0

    def add(self, datapoints: int, begun: int) -> None:
        """Counts what was delivered since that moment of `clock`."""
        self.nanoseconds += clock() - begun
        self.datapoints += datapoints

    def __reduce__(self) -> tuple[type[Counter], tuple[()]]:
        return Counter, ()


@dataclass(frozen=True)
class WorkerStatistics:
    """One worker of a parallel stage, and how it spent its time."""

    number: int
    pid: int | None  # None for a thread, or for num_proc=0
    busy_seconds: float  # computing datapoints
    wait_seconds: float  # for tasks, or for space in the queue
    memory_bytes: int  # not shared with other processes; 0 if unknown
    datapoints: int = 0


@dataclass(frozen=True)
class ParallelStatistics:
    """The workers of one parallel stage and the queue from them to the consumer."""

    workers: list[WorkerStatistics] = field(default_factory=list)
    queue_fill: float = 0.0  # mean; at 0 the consumer waits, at 1 the workers do
    queue_size: int = 0  # datapoints, batches or chunks that fit in


@runtime_checkable
class Parallel(Protocol):
    """A stage whose inputs run elsewhere."""

    def parallel_statistics(self) -> ParallelStatistics: ...


def walk(flow: DataFlow) -> list[DataFlow]:
    """The stages of a pipeline, the last first, each once.

    The order is a function of the pipeline's form, so that a snapshot fits in another process.
    """
    found: dict[int, DataFlow] = {}

    def visit(stage: DataFlow) -> None:
        if id(stage) not in found:
            found[id(stage)] = stage
            for below in stage.inputs():
                visit(below)

    visit(flow)
    return list(found.values())


def snapshot(flow: DataFlow) -> list[list[int]]:
    """`[datapoints, nanoseconds]` of each stage, in the order of `walk`."""
    return [[s.statistics.datapoints, s.statistics.nanoseconds] for s in walk(flow)]


def merge(
    flow: DataFlow, new: Sequence[Sequence[int]], old: Sequence[Sequence[int]] | None = None
) -> None:
    """Adds what a worker has counted since its snapshot `old` to the counters of this process."""
    stages = walk(flow)
    if len(new) != len(stages):
        raise ValueError(f"expected a snapshot of {len(stages)} stages, received {len(new)}")
    for stage, now, before in zip(stages, new, old or [[0, 0]] * len(new), strict=True):
        stage.statistics.datapoints += now[0] - before[0]
        stage.statistics.nanoseconds += now[1] - before[1]


UNASSIGNED = Counter()
"""The counter of iterators that no flow has opened yet."""


@dataclass(frozen=True)
class StageCost:
    """The cost of one stage, without its inputs."""

    label: str
    depth: int  # 0 for the last stage of the pipeline
    workers: int  # that run this stage; 0 for the consumer's process
    parallel: bool  # its time is spent waiting for the workers below it
    datapoints: int
    seconds: float  # without its inputs; summed over the workers
    batches: bool = False  # whether its datapoints are batches
    external: bool = False  # whether it waits for datapoints of other programs

    @property
    def load(self) -> float:
        """Seconds that each worker, or this process, has spent in the stage."""
        return self.seconds / max(1, self.workers)

    @property
    def microseconds(self) -> float:
        """The cost of each datapoint that the stage delivered."""
        return self.seconds / self.datapoints * 1e6 if self.datapoints else 0.0


def stage_costs(flow: DataFlow, since: Sequence[Sequence[int]] | None = None) -> list[StageCost]:
    """The cost of each stage, the last first, counted from an earlier `snapshot(flow)`.

    Stages below a parallel one count the time of all workers together. Single datapoints that are
    read by index are not counted: their time belongs to the stage above.
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
        below = workers
        if isinstance(stage, Parallel):
            below = max(1, len(stage.parallel_statistics().workers))
        else:
            nanoseconds -= sum(spent[id(source)][1] for source in stage.inputs())
        costs.append(
            StageCost(
                label=stage.label(),
                depth=depth,
                workers=workers,
                parallel=isinstance(stage, Parallel),
                datapoints=datapoints,
                seconds=max(0, nanoseconds) / 1e9,
                batches=stage.batching() is not None,
                external=stage.external,
            )
        )
        for source in stage.inputs():
            visit(source, depth + 1, below)

    visit(flow, 0, 0)
    return costs


def slowest(costs: Sequence[StageCost]) -> StageCost | None:
    """The stage that takes longest in the process or worker that runs it."""
    working = [cost for cost in costs if not cost.parallel and cost.seconds > 0]
    return max(working, key=lambda cost: cost.load, default=None)
