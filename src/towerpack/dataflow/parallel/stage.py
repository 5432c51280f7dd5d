"""Base classes of all parallel stages: their options, and where their work is done."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from towerpack.core import logger
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.functions import name_of
from towerpack.dataflow.parallel.executors import InlineExecutor
from towerpack.dataflow.parallel.iterators import Run
from towerpack.dataflow.parallel.tasks import Executor, TaskSource
from towerpack.dataflow.parallel.work import RAISE, SKIP, Work
from towerpack.dataflow.statistics import ParallelStatistics, merge, walk
from towerpack.dataflow.workers.pool import ProcessExecutor
from towerpack.dataflow.workers.process import check_start_method

TIMEOUT_SECONDS = 300.0  # longer than any datapoint or batch should take


@dataclass(frozen=True)
class WorkerOptions:
    """How worker processes are started and supervised; the same for all parallel stages."""

    start_method: str
    timeout: float | None
    on_error: str

    @classmethod
    def checked(
        cls, start_method: str | None, timeout: float | None, on_error: str
    ) -> WorkerOptions:
        if timeout is not None and timeout <= 0:
            raise ValueError(
                f"expected a timeout in seconds, or None for no limit, received {timeout}"
            )
        return cls(check_start_method(start_method), timeout, checked_on_error(on_error))


def checked_on_error(on_error: str) -> str:
    if on_error not in (RAISE, SKIP):
        raise ValueError(f"expected on_error='raise' or 'skip', received {on_error!r}")
    return on_error


def checked_count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"expected an integer {name} of at least {least}, received {value!r}")
    return value


def known_length(ds: DataFlow) -> int | None:
    """`len(ds)`, or None where it has none."""
    try:
        return len(ds)
    except (TypeError, NotImplementedError):
        return None


class ParallelStage(DataFlow):
    """Base class of stages whose datapoints are made by workers."""

    # Where datapoints are made must not change them.
    keeps_rows = True
    transparent = True

    _latest: Run | None = None
    _keeping = 0  # how many callers keep the workers from epoch to epoch
    _warned = False

    def _run(
        self,
        prefetch: int,
        start: Callable[[], Executor],
        following: Callable[[], TaskSource] | None = None,
    ) -> Run:
        """How an epoch runs; `following` makes the tasks of the next one, for kept workers."""
        following = following if self._keeping else None
        self._latest = Run(self.label(), prefetch, start, self._keep, following)
        return self._latest

    def _warn_of_copies(self, ds: DataFlow, copies: int) -> None:
        """Warns, once, that workers which each run a copy repeat the data."""
        if copies == 1 or self._warned:
            return
        self._warned, length = True, known_length(ds)
        if length is None:
            outcome = f"one epoch gives all data {copies} times"
        else:
            outcome = (
                f"an epoch is the first {length} of their datapoints, in which some are repeated "
                "and others are missing"
            )
        instead = f"put {ds.label()} after this stage" if ds.inputs() else "take a list or arrays"
        logger.warning(
            "%s: %s has no random access, so each of %d workers runs a copy of it, and %s. To get "
            "every datapoint once, use one worker, or %s",
            *(self.label(), ds.label(), copies, outcome, instead),
        )

    def _keep(self, executor: Executor) -> bool:
        """Keeps the workers of an epoch that has ended for the next one; returns whether it did."""
        return False

    def label(self) -> str:
        func = getattr(self, "map_func", None)
        return type(self).__name__ if func is None else f"{type(self).__name__}({name_of(func)})"

    def __len__(self) -> int:
        if self._latest is not None and (self._latest.dropped or self._latest.skipped):
            raise TypeError(f"{self.label()} has no len(): some of its datapoints were dropped")
        return len(self.inputs()[0])

    def __getstate__(self) -> dict[str, Any]:
        own = ("_latest", "_keeping", "_kept")
        return {key: value for key, value in self.__dict__.items() if key not in own}

    def parallel_statistics(self) -> ParallelStatistics:
        """The workers of the latest epoch, and how full the queue to the consumer was."""
        run = self._latest
        if run is None or run.window is None or run.executor is None:
            return ParallelStatistics()
        fill = run.window.fill / run.window.looks if run.window.looks else 0.0
        return ParallelStatistics(run.executor.statistics(), fill, run.prefetch)


@contextlib.contextmanager
def kept_workers(flow: DataFlow) -> Iterator[None]:
    """Keeps the worker processes of a flow from one epoch to the next, until the block is left.

    Starting workers for every epoch takes time and sends them the data set again. Changes of the
    flow do not reach kept workers. Over a flow with random access, a worker that has no more work
    in an epoch begins the next one. Blocks may be nested: the outermost one ends the workers.

    >>> from towerpack.dataflow import DataFromList, MultiProcessRunner
    >>> flow = MultiProcessRunner(DataFromList([[1], [2]], shuffle=False), 2, 1)
    >>> with kept_workers(flow):
    ...     [list(flow.iterate(epoch)) for epoch in range(2)]
    [[[1], [2]], [[1], [2]]]
    """
    stages = [stage for stage in walk(flow) if isinstance(stage, ProcessStage)]
    for stage in stages:
        stage.keep_workers(True)
    try:
        yield
    finally:
        for stage in stages:
            stage.keep_workers(False)


def hold_workers(flow: DataFlow, owner: Any) -> Callable[[], Any]:
    """Keeps workers, as `kept_workers` does, until the result is called or `owner` is deleted.

    For iterators that run several epochs of their input.
    """
    block = contextlib.ExitStack()
    block.enter_context(kept_workers(flow))
    return weakref.finalize(owner, block.close)


class ProcessStage(ParallelStage):
    """Base class of stages whose workers are processes."""

    num_proc: int
    options: WorkerOptions
    _kept: Executor | None = None

    def keep_workers(self, keep: bool) -> None:
        """See `kept_workers`."""
        self._keeping += 1 if keep else -1
        if not self._keeping and self._kept is not None:
            self._kept.close()
            self._kept = None

    def _keep(self, executor: Executor) -> bool:
        if not self._keeping or self._kept is not None:
            return False
        if not isinstance(executor, ProcessExecutor) or not executor.is_reusable:
            return False
        self._kept = executor
        return True

    def _processes(self, work: Callable[[], Work]) -> Callable[[], Executor]:
        """A function that starts the workers, or an executor in this process for `num_proc=0`."""
        name, workers, options = self.label(), self.num_proc, self.options
        stages = self.inputs()[0]

        def start() -> Executor:
            job = work()
            if workers == 0:
                return InlineExecutor(job)
            kept, self._kept = self._kept, None
            if isinstance(kept, ProcessExecutor):
                if kept.does_the_same(job):
                    return kept
                kept.close()
            same = len(walk(job.statistics_of())) == len(walk(stages))
            return ProcessExecutor(
                job,
                workers,
                name,
                options.start_method,
                options.timeout,
                (lambda new, old: merge(stages, new, old)) if same else None,
            )

        return start
