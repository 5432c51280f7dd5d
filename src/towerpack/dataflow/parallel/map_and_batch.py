"""A function applied to every datapoint, and the results batched, both by worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.iterators import FlowIterator
from towerpack.dataflow.parallel.iterators import IndexedIterator, MappingIterator
from towerpack.dataflow.parallel.sources import BatchedInputs, Indices
from towerpack.dataflow.parallel.stage import (
    TIMEOUT_SECONDS,
    ProcessStage,
    WorkerOptions,
    checked_count,
)
from towerpack.dataflow.parallel.work import FlowWork, MapBatchWork
from towerpack.dataflow.stage.batch import BatchData
from towerpack.dataflow.stage.map import MapData

BATCHES_AHEAD = 8  # keeps workers busy without filling the memory


class MultiProcessMapAndBatchData(ProcessStage):
    """Applies `map_func` in worker processes, which also stack the results into batches.

    The stream of `BatchData(MapData(ds, map_func), batch_size)`: in order, every datapoint exactly
    once, for any number of workers. A batch is assembled in shared memory, and the consumer reads
    it without a copy. `map_func` may not drop datapoints: put a `FilterData` before this stage, or
    use `MultiProcessMapData` with a `BatchData` after it.

    Args:
        buffer_size: datapoints made ahead of the consumer; None for eight batches.
        remainder: whether an incomplete last batch is included.
        num_proc, map_func, seed, start_method, timeout, on_error: see `MultiProcessMapData`. With
            'skip', a batch in which a datapoint raises is left out as a whole.

    >>> from towerpack.dataflow import DataFromList
    >>> flow = DataFromList([[1], [2], [3], [4]], shuffle=False)
    >>> batches = MultiProcessMapAndBatchData(flow, 2, lambda dp: [dp[0] * 10], batch_size=2)
    >>> [batch[0].tolist() for batch in batches]
    [[10, 20], [30, 40]]
    """

    keeps_rows = True

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        num_proc: int,
        map_func: Callable[..., Any],
        batch_size: int,
        buffer_size: int | None = None,
        *,
        remainder: bool = False,
        seed: int = 0,
        start_method: str | None = None,
        timeout: float | None = TIMEOUT_SECONDS,
        on_error: str = "raise",
    ):
        self._map = MapData(ds, map_func, seed=seed)
        self._batch = BatchData(self._map, batch_size, remainder)
        self.ds = self._map.ds
        self.num_proc = checked_count("num_proc", num_proc, 0)
        self.map_func, self.batch_size, self.remainder = map_func, batch_size, remainder
        ahead = BATCHES_AHEAD * batch_size if buffer_size is None else buffer_size
        self.buffer_size = checked_count("buffer_size", ahead, 1)
        self.options = WorkerOptions.checked(start_method, timeout, on_error)

    def inputs(self) -> Sequence[DataFlow]:
        return (self._batch,)

    def sequential(self, epoch: Epoch) -> FlowIterator:
        size, on_error = self.batch_size, self.options.on_error
        prefetch = max(1, self.buffer_size // size)
        if self.ds.random_access and self.ds.drops is False:
            start = self._processes(lambda: FlowWork(self._batch, epoch.branch, on_error))
            count = self._batch.num_indices()
            run = self._run(prefetch, start, lambda: Indices(epoch.number + 1, 0, count))
            return IndexedIterator(run, count, lambda at: Indices(epoch.number, at, count))
        start = self._processes(lambda: MapBatchWork(self._map, epoch.branch, on_error, size))
        run = self._run(prefetch, start)
        run.counters = [(self._map.statistics, size), (self._batch.statistics, 1)]
        return MappingIterator(
            run,
            self.ds.open(epoch),
            lambda source, at: BatchedInputs(epoch.number, source, at, size, self.remainder),
            size,
        )
