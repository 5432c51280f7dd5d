"""A function applied to every datapoint, and the results batched, both by worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from towerpack.dataflow.base import DataFlow, FlowIterator, Pass
from towerpack.dataflow.batch import BatchData
from towerpack.dataflow.blame import name_of
from towerpack.dataflow.map import MapData
from towerpack.dataflow.parallel.iterators import IndexedIterator, MappingIterator
from towerpack.dataflow.parallel.old_names import old_names
from towerpack.dataflow.parallel.sources import BatchedInputs, Indices
from towerpack.dataflow.parallel.stage import (
    TIMEOUT_SECONDS,
    ProcessStage,
    WorkerOptions,
    checked_count,
)
from towerpack.dataflow.parallel.work import FlowWork, MapBatchWork

BATCHES_AHEAD = 8  # a default that keeps workers busy without filling the memory


class MultiProcessMapAndBatchData(ProcessStage):
    """Applies `map_func` in worker processes, which also stack the results into batches.

    The stream of `BatchData(MapData(ds, map_func), batch_size)`: in order, every datapoint exactly
    once, for any number of workers. A batch is assembled in shared memory, and the consumer gets it
    without a copy. `map_func` may not drop datapoints: put a `FilterData` before, or use
    `MultiProcessMapData` with a `BatchData` behind it.

    Args:
        buffer_size: datapoints made ahead of the consumer; None for eight batches.
        remainder: whether an incomplete last batch comes too.
        num_proc, map_func, seed, start_method, timeout, on_error: see `MultiProcessMapData`. With
            'skip', a batch in which a datapoint raises is left out as a whole.

    >>> from towerpack.dataflow import DataFromList
    >>> flow = DataFromList([[1], [2], [3], [4]], shuffle=False)
    >>> batches = MultiProcessMapAndBatchData(flow, 2, lambda dp: [dp[0] * 10], batch_size=2)
    >>> [batch[0].tolist() for batch in batches]
    [[10, 20], [30, 40]]
    """

    @old_names(nr_proc="num_proc")
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
        self.ds, self.height = self._map.ds, self._batch.height
        self.num_proc = checked_count("num_proc", num_proc, 0)
        self.map_func, self.batch_size, self.remainder = map_func, batch_size, remainder
        ahead = BATCHES_AHEAD * batch_size if buffer_size is None else buffer_size
        self.buffer_size = checked_count("buffer_size", ahead, 1)
        self.options = WorkerOptions.checked(start_method, timeout, on_error)

    def inputs(self) -> Sequence[DataFlow]:
        return (self._batch,)

    def label(self) -> str:
        return f"{type(self).__name__}({name_of(self.map_func)})"

    def __len__(self) -> int:
        self._check_len()
        return len(self._batch)

    def iterator(self, pass_: Pass) -> FlowIterator:
        size, on_error = self.batch_size, self.options.on_error
        prefetch = max(1, self.buffer_size // size)
        if self.ds.random_access and self.ds.drops is False:
            start = self._processes(lambda: FlowWork(self._batch, pass_.branch, on_error))
            count = self._batch.span()
            run = self._run(prefetch, start, lambda: Indices(pass_.epoch + 1, 0, count))
            return IndexedIterator(run, count, lambda at: Indices(pass_.epoch, at, count))
        start = self._processes(lambda: MapBatchWork(self._map, pass_.branch, on_error, size))
        run = self._run(prefetch, start)
        run.counters = [(self._map.statistics, size), (self._batch.statistics, 1)]
        return MappingIterator(
            run,
            self.ds.iterator(pass_),
            lambda source, at: BatchedInputs(pass_.epoch, source, at, size, self.remainder),
            size,
        )


MultiProcessMapAndBatchDataZMQ = MultiProcessMapAndBatchData
