"""What each stage has cost so far: datapoints and nanoseconds, counted always and cheaply.

Every flow has `flow.statistics`, a `Counter` of what its `get_rows`, `gather` and its iterators'
`__next__` have delivered and how long that took, inputs included. Those are called once per batch
or chunk wherever speed matters, so counting costs nothing to speak of; a single `get` is not
counted. `DataFlow` and `FlowIterator` see to it that every subclass is counted, also a user's.

The protocol for stages whose inputs run in other processes or threads:

- A worker iterates its own copy of the flow, whose counters begin at zero. Now and then it sends
  `snapshot(ds)`, a list of small lists of ints, and the parent adds it to its own copy by
  `merge(ds, new, old)`, where `old` is what it got from that worker before. So the counters of the
  flows below a parallel stage are sums over the workers, in worker time.
- The stage itself implements `parallel_statistics() -> ParallelStatistics`: one
  `WorkerStatistics` for each worker, and how full the queue towards the consumer was. By having
  that method it says that the time of its inputs is not part of its own.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from towerpack.dataflow.base import DataFlow, FlowIterator, Pass

clock = time.perf_counter_ns


class Counter:
    """How many datapoints a stage has delivered, and the nanoseconds it took, inputs included.

    A copy begins at zero. Counts of a stage that several threads use at once are approximate: no
    lock is worth its price here.
    """

    __slots__ = ("datapoints", "nanoseconds", "ready", "thread")

    def __init__(self) -> None:
        self.datapoints = self.nanoseconds = 0
        self.thread = 0  # of the measured call that is under way
        self.ready = False  # whether the stage was prepared in this process, see `prepare`

    def add(self, datapoints: int, begun: int) -> None:
        """Counts what was delivered since that moment of `clock`."""
        self.nanoseconds += clock() - begun
        self.datapoints += datapoints

    def __reduce__(self) -> tuple[type[Counter], tuple[()]]:
        return Counter, ()

    def __repr__(self) -> str:
        return f"Counter({self.datapoints} datapoints, {self.nanoseconds / 1e9:.3f} s)"


@dataclass(frozen=True)
class WorkerStatistics:
    """One worker of a parallel stage: what it is, and where its time went."""

    number: int
    pid: int | None  # None for a thread, or for num_proc=0
    busy_seconds: float  # computing datapoints
    wait_seconds: float  # for tasks, or for room in the queue
    memory_bytes: int  # of its own, not shared with others; 0 where unknown
    datapoints: int = 0


@dataclass(frozen=True)
class ParallelStatistics:
    """The workers of one parallel stage and the queue from them to the consumer."""

    workers: list[WorkerStatistics] = field(default_factory=list)
    queue_fill: float = 0.0  # mean over the consumer's looks: at 0 it waits, at 1 the workers do
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
    """Adds to this process's counters what a worker has counted since its snapshot `old`."""
    stages = walk(flow)
    if len(new) != len(stages):
        raise ValueError(f"expected a snapshot of {len(stages)} stages, received {len(new)}")
    for i, stage in enumerate(stages):
        stage.statistics.datapoints += new[i][0] - (old[i][0] if old else 0)
        stage.statistics.nanoseconds += new[i][1] - (old[i][1] if old else 0)


def prepare(flow: DataFlow) -> None:
    """Calls `reset_state` of the stages that have one, once in the process that uses them.

    Flows of old scripts open their files there. What runs in workers is prepared by them.
    """
    if not flow.statistics.ready:
        flow.statistics.ready = True
        flow.reset_state()
    if not isinstance(flow, Parallel):
        for below in flow.inputs():
            prepare(below)


def measured(method: Callable[..., Any]) -> Callable[..., Any]:
    """`get_rows` or `gather` of a flow, counted."""

    @functools.wraps(method)
    def measured(self: DataFlow, indices: Sequence[int], pass_: Pass) -> Any:
        counter, thread = self.statistics, get_ident()
        if not counter.ready:
            prepare(self)
        if counter.thread == thread:  # one measured method of the stage calls the other
            return method(self, indices, pass_)
        counter.thread = thread
        begun = clock()
        try:
            return method(self, indices, pass_)
        finally:
            counter.add(len(indices), begun)
            counter.thread = 0

    return measured


def measured_rows(method: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """`each_row` of a flow, counted."""

    @functools.wraps(method)
    def measured_rows(self: DataFlow, indices: Sequence[int], pass_: Pass) -> Iterator[Any]:
        if not self.statistics.ready:
            prepare(self)
        rows = method(self, indices, pass_)
        if self.statistics.thread == get_ident():  # asked for by the stage's own `gather`
            return rows
        return _counted(rows, self.statistics, get_ident())

    return measured_rows


def _counted(rows: Iterator[Any], counter: Counter, thread: int) -> Iterator[Any]:
    """The same rows; the time that they take is the counter's, that of their consumer is not."""
    try:
        begun, counter.thread = clock(), thread
        for row in rows:
            counter.thread = 0
            counter.add(1, begun)
            yield row
            begun, counter.thread = clock(), thread
    finally:
        counter.thread = 0


def measured_iterator(method: Callable[..., FlowIterator]) -> Callable[..., FlowIterator]:
    """`iterator` of a flow: what it returns counts for this flow, unless it does for another."""

    @functools.wraps(method)
    def measured_iterator(self: DataFlow, pass_: Pass) -> FlowIterator:
        if not self.statistics.ready:
            prepare(self)
        iterator = method(self, pass_)
        if iterator.counter is NOBODY:
            iterator.counter = self.statistics
        return iterator

    return measured_iterator


def measured_next(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`__next__` of an iterator, counted."""

    @functools.wraps(method)
    def measured_next(self: FlowIterator) -> Any:
        begun = clock()
        datapoint = method(self)
        self.counter.add(1, begun)
        return datapoint

    return measured_next


NOBODY = Counter()
"""The counter of iterators that belong to no stage yet."""
