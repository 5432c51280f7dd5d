"""What all parallel stages have in common: their options, and where their work is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from towerpack.core.launcher import check_start_method
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.parallel.inline import InlineExecutor
from towerpack.dataflow.parallel.iterators import Run
from towerpack.dataflow.parallel.pool import ProcessExecutor
from towerpack.dataflow.parallel.tasks import Executor
from towerpack.dataflow.parallel.work import RAISE, SKIP, Work
from towerpack.dataflow.statistics import ParallelStatistics, merge

TIMEOUT_SECONDS = 300.0  # longer than any honest datapoint or batch takes


@dataclass(frozen=True)
class WorkerOptions:
    """How worker processes are started and treated; the same for all parallel stages."""

    start_method: str
    timeout: float | None
    on_error: str

    @classmethod
    def checked(
        cls, start_method: str | None, timeout: float | None, on_error: str
    ) -> WorkerOptions:
        if on_error not in (RAISE, SKIP):
            raise ValueError(f"expected on_error='raise' or 'skip', received {on_error!r}")
        if timeout is not None and timeout <= 0:
            raise ValueError(
                f"expected a timeout in seconds, or None for no limit, received {timeout}"
            )
        return cls(check_start_method(start_method), timeout, on_error)


def checked_count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"expected an integer {name} of at least {least}, received {value!r}")
    return value


class ParallelStage(DataFlow):
    """Base class of stages whose datapoints are made by workers."""

    num_proc: int
    options: WorkerOptions
    _latest: Run | None = None

    def _run(self, prefetch: int, work: Callable[[], Work], counted: DataFlow | None) -> Run:
        """How to run some work; the statistics of `counted` are those of the workers' copies."""
        name, workers, options = self.label(), self.num_proc, self.options

        def start() -> Executor:
            if workers == 0:
                return InlineExecutor(work())
            merged = (lambda new, old: merge(counted, new, old)) if counted is not None else None
            return ProcessExecutor(
                work(), workers, name, options.start_method, options.timeout, merged
            )

        self._latest = Run(name, prefetch, start)
        return self._latest

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_latest"}

    def parallel_statistics(self) -> ParallelStatistics:
        """The workers of the latest pass, and how full the queue to the consumer was."""
        run = self._latest
        if run is None or run.window is None or run.executor is None:
            return ParallelStatistics()
        fill = run.window.fill / run.window.looks if run.window.looks else 0.0
        return ParallelStatistics(run.executor.statistics(), fill, run.prefetch)
