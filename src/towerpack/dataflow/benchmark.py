"""The speed of a flow, its slowest stage, and what to do about it."""

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

from towerpack.core import logger
from towerpack.core.progress import Progress
from towerpack.dataflow.base import DataFlow, iterates_by_index
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.iterators import FlowIterator
from towerpack.dataflow.source.iterable import as_flow
from towerpack.dataflow.stage.base import ProxyDataFlow
from towerpack.dataflow.stage.repeat import ENDLESS, RepeatedData
from towerpack.dataflow.statistics import (
    Parallel,
    ParallelStatistics,
    StageCost,
    slowest,
    snapshot,
    stage_costs,
    walk,
)

CHUNK = 64  # datapoints that are read at a time when stages are measured by index
BAR_WIDTH = 16
PROFILE_LINES = 12
IDLE_QUEUE = 0.2  # fill below which the consumer mostly waits
FULL_QUEUE = 0.8  # and above which the workers mostly do
TRANSPORT_SHARE = 0.5  # of the time, above which the transport from the workers is the bottleneck


@dataclass(frozen=True)
class ProfileLine:
    """One function of the profile."""

    function: str
    calls: int
    seconds: float  # without the functions that it calls


@dataclass(frozen=True)
class BenchResult:
    """The measurements of `bench`; print it, or show `table()` with rich."""

    label: str
    datapoints: int
    seconds: float
    first_seconds: float  # until the first datapoint, including the start of workers
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
            bar = f"{'█' * round(share * BAR_WIDTH):{BAR_WIDTH}}"
            table.add_row(
                "  " * cost.depth + cost.label,
                f"{cost.workers} workers" if cost.workers else "this process",
                number(cost.microseconds) if cost.datapoints else "",
                f"waits {cost.seconds:.3g} s" if cost.parallel else f"{bar} {cost.load:.3g} s",
            )
        return table

    def __str__(self) -> str:
        console = Console(width=120, color_system=None, force_terminal=False)
        with console.capture() as capture:
            console.print(self.table())
        return "\n".join([capture.get().rstrip(), *self.lines()])

    def lines(self) -> list[str]:
        """The lines below the table: queues, workers, profile, verdict."""
        lines = [f"first datapoint after {self.first_seconds:.3g} s"]
        for label, parallel in self.parallel.items():
            lines.append(f"{label}: queue {parallel.queue_fill:.0%} full of {parallel.queue_size}")
            for worker in parallel.workers:
                lines.append(
                    f"  worker {worker.number}: busy {worker.busy_seconds:.3g} s, waiting "
                    f"{worker.wait_seconds:.3g} s, {worker.memory_bytes / 2**20:.0f} MB of memory"
                )
        if self.profile:
            lines.append("where the time goes (own seconds, calls, function):")
            lines += [f"  {x.seconds:8.3f} {x.calls:10d}  {x.function}" for x in self.profile]
        return [*lines, self.verdict]


def bench(
    flow: DataFlow | Iterable[Any], seconds: float = 5.0, profile: bool = False
) -> BenchResult:
    """Runs a flow for some seconds and reports its speed and its slowest stage.

    Epochs follow each other, as in training, and the datapoints are discarded. Workers are started
    and stopped. With `profile`, the flow that the workers run (or the flow itself, if it has none)
    runs again in this process under cProfile, for the same time.

    >>> result = bench(range(100), seconds=0.05)
    >>> result.throughput > 0, result.verdict.startswith("Source")
    (True, True)
    """
    flow = as_flow(flow)
    count, duration, first, since = _run(flow, seconds)
    if iterates_by_index(flow):
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
    with RepeatedData(flow, ENDLESS).iterate() as stream:
        next(stream)
        since = snapshot(flow)
        now = started = time.perf_counter()
        count = 0
        while now - started < seconds:
            next(stream)
            count += 1
            now = time.perf_counter()
        return count, max(now - started, 1e-9), started - begun, since


def _run_by_rows(flow: DataFlow, seconds: float) -> None:
    begun, size, epoch = time.perf_counter(), flow.num_indices(), 0
    while time.perf_counter() - begun < seconds:
        for start in range(0, size, CHUNK):
            flow.read(range(start, min(start + CHUNK, size)), Epoch(epoch))
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
    costly = sorted(stats.items(), key=lambda item: -item[1].tottime)[:PROFILE_LINES]
    return [
        ProfileLine(
            f"{name} ({os.path.basename(x.file_name)}:{x.line_number})",
            int(x.ncalls.split("/")[0]),
            x.tottime,
        )
        for name, x in costly
    ]


def number(value: float) -> str:
    """Three digits or more, never an exponent: 0.12, 12.3, 12,345."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _verdict(result: BenchResult) -> str:
    worst = slowest(result.stages)
    if worst is None:
        return f"{result.label}: no stage took measurable time; run it longer"
    busy = worst.load / sum(x.load for x in result.stages if not x.parallel)
    head = f"{worst.label} is the slowest stage, {busy:.0%} of the time"
    if not result.parallel:
        return (
            f"{head}: make it cheaper, or run the flow in workers: "
            "MultiProcessRunner(flow, num_prefetch, num_proc)"
        )
    waited = sum(x.seconds for x in result.stages if x.parallel)
    # Counters exclude the packing of results; the workers' own times exclude earlier epochs.
    counted = sum(x.load for x in result.stages if x.workers and not x.parallel)
    busy_times = [
        sum(worker.busy_seconds for worker in parallel.workers) / max(1, len(parallel.workers))
        for parallel in result.parallel.values()
    ]
    worked = max(counted, *busy_times)
    if waited > TRANSPORT_SHARE * result.seconds and worked < waited * (1 - TRANSPORT_SHARE):
        return (
            f"this process waited {number(waited)} s for {number(worked)} s of work: starting "
            "workers and moving data took the rest; batch below the parallel stage, and make "
            "epochs longer"
        )
    fill = min(parallel.queue_fill for parallel in result.parallel.values())
    if worst.workers == 0 and fill > IDLE_QUEUE:
        return f"{head}, in this process, while workers wait: move it below the parallel stage"
    if fill >= FULL_QUEUE:
        return f"the workers are faster than the consumer (queue {fill:.0%} full): {head}"
    workers = max(len(parallel.workers) for parallel in result.parallel.values())
    cores = os.cpu_count()
    return f"{head}: make it cheaper, or run more workers; {workers} run on {cores} cores"


class TestDataSpeed(ProxyDataFlow):
    """Measures how many datapoints per second a flow gives: `TestDataSpeed(ds).start()`.

    `start` draws `warmup` datapoints, then `size`, over several epochs if necessary, shows a
    progress bar, logs the rate and returns it. When iterated over, this stage does the same once
    before the first datapoint, and passes the flow on unchanged. To find the slowest stage, use
    `bench(ds)`.

    >>> TestDataSpeed([[1], [2]], size=10).start() > 0
    True
    """

    __test__ = False  # for pytest: the name begins with Test, but this is not a test
    keeps_rows = True
    transparent = True

    def __init__(self, ds: DataFlow | Iterable[Any], size: int = 5000, warmup: int = 0):
        super().__init__(ds)
        self.test_size, self.warmup = int(size), int(warmup)
        self._tested = False

    def start(self) -> float:
        """Draws the datapoints and returns how many came per second."""
        self._tested = True
        size = self.test_size
        with RepeatedData(self.ds, ENDLESS).iterate() as stream:
            for _ in range(self.warmup):
                next(stream)
            begun = time.perf_counter()
            with Progress(size, "TestDataSpeed") as bar:
                for _ in range(size):
                    next(stream)
                    bar.update()
            rate = size / max(time.perf_counter() - begun, 1e-9)
        logger.info("TestDataSpeed: %d datapoints of %s, %.4g/s", size, self.ds.label(), rate)
        return rate

    def iterator(self, epoch: Epoch) -> FlowIterator:
        if not self._tested:
            self.start()
        return self.ds.open(epoch)
