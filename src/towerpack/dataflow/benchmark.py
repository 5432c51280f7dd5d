"""How fast a flow is, which of its stages is the slowest, and what to do about it."""

from __future__ import annotations

import cProfile
import os
import pstats
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from towerpack.dataflow.base import DataFlow, Pass, as_flow
from towerpack.dataflow.data_speed import endlessly
from towerpack.dataflow.stage_costs import StageCost, slowest, stage_costs
from towerpack.dataflow.statistics import Parallel, ParallelStatistics, snapshot, walk

CHUNK = 64  # datapoints asked for at a time where stages are measured by index
BAR_WIDTH = 16
PROFILE_LINES = 12
IDLE_QUEUE = 0.2  # fill below which the consumer mostly waits
FULL_QUEUE = 0.8  # and above which the workers mostly do
TRANSPORT_SHARE = 0.5  # of the time, above which the way from the workers is to blame


@dataclass(frozen=True)
class ProfileLine:
    """One function of the profile."""

    function: str
    calls: int
    seconds: float  # of its own


@dataclass(frozen=True)
class BenchResult:
    """What `bench` has measured; print it, or show `table()` with rich."""

    label: str
    datapoints: int
    seconds: float
    first_seconds: float  # until the first datapoint came, workers started included
    stages: list[StageCost]
    parallel: dict[str, ParallelStatistics]
    profile: list[ProfileLine] = field(default_factory=list)

    @property
    def throughput(self) -> float:
        """Datapoints (batches, if the flow batches) per second."""
        return self.datapoints / self.seconds if self.seconds else 0.0

    @property
    def verdict(self) -> str:
        """One line: the slowest stage, and what to do about it."""
        return _verdict(self)

    def table(self) -> Table:
        """The stages, with a bar for the share of each in the time of its process."""
        table = Table(
            title=f"{self.label}: {number(self.throughput)} datapoints/s", title_justify="left"
        )
        table.add_column("stage", overflow="fold")
        table.add_column("runs in")
        table.add_column("µs each", justify="right")
        table.add_column("its own time", no_wrap=True)
        total = max((cost.load for cost in self.stages if not cost.parallel), default=0.0)
        for cost in self.stages:
            share = cost.load / total if total and not cost.parallel else 0.0
            table.add_row(
                "  " * cost.depth + cost.label,
                f"{cost.workers} workers" if cost.workers else "this process",
                number(cost.microseconds) if cost.datapoints else "",
                f"waits {cost.seconds:.3g} s" if cost.parallel else _bar(share, cost.load),
            )
        return table

    def __str__(self) -> str:
        console = Console(width=120, color_system=None, force_terminal=False)
        with console.capture() as capture:
            console.print(self.table())
        return "\n".join([capture.get().rstrip(), *self.lines()])

    def lines(self) -> list[str]:
        """What the table does not show: queues, workers, profile, verdict."""
        lines = [f"first datapoint after {self.first_seconds:.3g} s"]
        for label, parallel in self.parallel.items():
            lines.append(f"{label}: queue {parallel.queue_fill:.0%} full of {parallel.queue_size}")
            for worker in parallel.workers:
                lines.append(
                    f"  worker {worker.number}: busy {worker.busy_seconds:.3g} s, waiting "
                    f"{worker.wait_seconds:.3g} s, {worker.memory_bytes / 2**20:.0f} MB of its own"
                )
        if self.profile:
            lines.append("where the time goes (own seconds, calls, function):")
            lines += [f"  {x.seconds:8.3f} {x.calls:10d}  {x.function}" for x in self.profile]
        return [*lines, self.verdict]


def bench(
    flow: DataFlow | Iterable[Any], seconds: float = 5.0, profile: bool = False
) -> BenchResult:
    """Runs a flow for some seconds and says how fast it is and which stage is the slowest.

    Passes follow each other, as in training, and nothing is done with the datapoints. Workers are
    started and stopped. With `profile`, what the workers run (or the flow itself, if it has none)
    is run once more in this process under cProfile, for as long again.

    >>> result = bench(range(100), seconds=0.05)
    >>> result.throughput > 0, result.verdict.startswith("Source")
    (True, True)
    """
    flow = as_flow(flow)
    count, duration, first, since = _run(flow, seconds)
    if flow.walks_indices:
        # Iterated one by one, only the last stage is counted; by rows, all are.
        since = snapshot(flow)
        _run_by_rows(flow, seconds / 2)
    parallel = {
        stage.label(): stage.parallel_statistics()
        for stage in walk(flow)
        if isinstance(stage, Parallel)
    }
    costs = stage_costs(flow, since)
    lines = _profile(flow, seconds) if profile else []
    return BenchResult(flow.label(), count, duration, first, costs, parallel, lines)


def _run(flow: DataFlow, seconds: float) -> tuple[int, float, float, list[list[int]]]:
    """Datapoints after the first, the seconds they took, seconds until it, and counters then."""
    begun = time.perf_counter()
    stream = endlessly(flow)
    try:
        if next(stream, stream) is stream:
            raise ValueError(f"expected datapoints, but {flow.label()} gave none")
        since = snapshot(flow)
        now = started = time.perf_counter()
        count = 0
        while now - started < seconds:
            if next(stream, stream) is stream:
                break
            count += 1
            now = time.perf_counter()
        return count, max(now - started, 1e-9), started - begun, since
    finally:
        stream.close()


def _run_by_rows(flow: DataFlow, seconds: float) -> None:
    begun, size, epoch = time.perf_counter(), flow.span(), 0
    while time.perf_counter() - begun < seconds:
        for start in range(0, size, CHUNK):
            flow.get_rows(range(start, min(start + CHUNK, size)), Pass(epoch))
            if time.perf_counter() - begun > seconds:
                break
        epoch += 1


def _profile(flow: DataFlow, seconds: float) -> list[ProfileLine]:
    while isinstance(flow, Parallel):
        flow = flow.inputs()[0]
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        _run(flow, seconds)
    finally:
        profiler.disable()
    stats = pstats.Stats(profiler).get_stats_profile().func_profiles
    lines = [
        ProfileLine(
            _place(name, x.file_name, x.line_number), int(x.ncalls.split("/")[0]), x.tottime
        )
        for name, x in stats.items()
    ]
    return sorted(lines, key=lambda line: -line.seconds)[:PROFILE_LINES]


def _place(name: str, file: str, line: int) -> str:
    return name if file == "~" else f"{name} ({os.path.basename(file)}:{line})"


def number(value: float) -> str:
    """Three digits or more, never an exponent: 0.12, 12.3, 12,345."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bar(share: float, load: float) -> str:
    return f"{'█' * round(share * BAR_WIDTH):{BAR_WIDTH}} {load:.3g} s"


def _mean_busy(parallel: ParallelStatistics) -> float:
    return sum(x.busy_seconds for x in parallel.workers) / max(1, len(parallel.workers))


def _verdict(result: BenchResult) -> str:
    worst = slowest(result.stages)
    if worst is None:
        return f"{result.label}: nothing worth mentioning was measured; run it longer"
    busy = worst.load / sum(x.load for x in result.stages if not x.parallel)
    head = f"{worst.label} is the slowest stage, {busy:.0%} of the time"
    if not result.parallel:
        return (
            f"{head}: make it cheaper, or run the flow in workers: "
            "MultiProcessRunner(flow, num_prefetch, num_proc)"
        )
    waited = sum(x.seconds for x in result.stages if x.parallel)
    # Counters leave out the packing of results, workers' own figures the passes before the last.
    counted = sum(x.load for x in result.stages if x.workers and not x.parallel)
    worked = max(counted, *(_mean_busy(parallel) for parallel in result.parallel.values()))
    if waited > TRANSPORT_SHARE * result.seconds and worked < waited * (1 - TRANSPORT_SHARE):
        return (
            f"this process waited {number(waited)} s for {number(worked)} s of work: starting "
            "workers and moving data takes the rest; batch below the parallel stage, and make "
            "passes longer"
        )
    fill = min(parallel.queue_fill for parallel in result.parallel.values())
    workers = max(len(parallel.workers) for parallel in result.parallel.values())
    cores = os.cpu_count() or 1
    if worst.workers == 0 and fill > IDLE_QUEUE:
        return f"{head}, in this process, while workers wait: move it below the parallel stage"
    if fill >= FULL_QUEUE:
        return f"the workers are faster than they are asked (queue {fill:.0%} full): {head}"
    if workers < cores:
        return f"{head}: more workers will help, {workers} run on {cores} cores"
    return f"{head}: make it cheaper; the {workers} workers already keep {cores} cores busy"
