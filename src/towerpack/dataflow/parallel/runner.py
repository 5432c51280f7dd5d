"""A whole flow in worker processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from towerpack.core.prefetch import BATCHES
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.iterators import FlowIterator
from towerpack.dataflow.parallel.iterators import CopiesIterator, IndexedIterator
from towerpack.dataflow.parallel.sources import Indices
from towerpack.dataflow.parallel.stage import (
    TIMEOUT_SECONDS,
    ProcessStage,
    WorkerOptions,
    checked_count,
    known_length,
)
from towerpack.dataflow.parallel.work import SKIP, FlowWork, StreamWork
from towerpack.dataflow.source.iterable import as_flow


class MultiProcessRunner(ProcessStage):
    """Runs a flow in `num_proc` worker processes.

    Over a flow with random access the workers share its indices: every datapoint exactly once, in
    order, the same stream as without workers, for any `num_proc`. Put whole batches inside
    (`MultiProcessRunner(BatchData(...), 10, 2)`): then a worker assembles each in shared memory,
    and the consumer reads it without a copy.

    Over any other flow (a generator, `BucketBatchData`) each worker runs its own copy, with its own
    random numbers, and their datapoints alternate. With `num_proc=1` the result is the flow itself,
    in order. With more workers, datapoints are repeated, and a warning reports this: an epoch ends
    after `len(ds)` datapoints or, if the flow has no length, contains all data `num_proc` times.
    The stream is a function of (seed, epoch, num_proc).

    Arrays are views of shared memory, which is used again when the last of them is deleted. A
    consumer that holds more than 256 MB of them gets copies instead.

    Args:
        num_prefetch: datapoints made ahead of the consumer, at least one for each worker. Small
            ones are made and sent many at a time.
        num_proc: how many workers; 0 runs the same in this process, for a debugger.
        start_method: 'forkserver' (default), 'spawn', or 'fork' (not with TensorFlow or threads).
        timeout: seconds after which a worker that has not finished a datapoint or batch is killed
            and replaced; None for no limit.
        on_error: 'raise' an error of the flow here, with its own type and the worker's traceback,
            or 'skip' that datapoint and count it.

    A worker that dies is replaced, and the stream stays the same; after three deaths in a minute
    `WorkerDied` reports how and at which datapoint. Nothing is left behind after the last
    datapoint, an error, `close()` or the end of this process, even if it is killed.

    >>> from towerpack.dataflow import DataFromList
    >>> list(MultiProcessRunner(DataFromList([[1], [2], [3]], shuffle=False), 2, 2))
    [[1], [2], [3]]
    """

    keeps_rows = True

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        num_prefetch: int,
        num_proc: int,
        *,
        start_method: str | None = None,
        timeout: float | None = TIMEOUT_SECONDS,
        on_error: str = "raise",
    ):
        self.ds = as_flow(ds)
        self.num_prefetch = checked_count("num_prefetch", num_prefetch, 1)
        self.num_proc = checked_count("num_proc", num_proc, 0)
        self.options = WorkerOptions.checked(start_method, timeout, on_error)

    def inputs(self) -> Sequence[DataFlow]:
        return (self.ds,)

    @property
    def drops(self) -> bool | None:
        return None if self.options.on_error == SKIP else self.ds.drops

    def sequential(self, epoch: Epoch) -> FlowIterator:
        ds, on_error = self.ds, self.options.on_error
        if ds.random_access:
            start = self._processes(lambda: FlowWork(ds, epoch.branch, on_error))
            size = ds.num_indices()
            run = self._run(self.num_prefetch, start, lambda: Indices(epoch.number + 1, 0, size))
            return IndexedIterator(run, size, lambda at: Indices(epoch.number, at, size))
        copies = max(1, self.num_proc)
        start = self._processes(lambda: StreamWork(ds, epoch.branch, on_error, copies))
        run = self._run(self.num_prefetch, start)
        self._warn_of_copies(ds, copies)
        return CopiesIterator(run, epoch.number, copies, known_length(ds) if copies > 1 else None)


class MultiProcessRunnerZMQ(MultiProcessRunner):
    """`MultiProcessRunner` with the arguments of tensorpack: `hwm` is `num_prefetch`.

    >>> from towerpack.dataflow import DataFromList
    >>> list(MultiProcessRunnerZMQ(DataFromList([[1], [2]], shuffle=False), num_proc=1))
    [[1], [2]]
    """

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        num_proc: int = 1,
        hwm: int = BATCHES,
        *,
        start_method: str | None = None,
        timeout: float | None = TIMEOUT_SECONDS,
        on_error: str = "raise",
    ):
        super().__init__(
            ds, hwm, num_proc, start_method=start_method, timeout=timeout, on_error=on_error
        )
