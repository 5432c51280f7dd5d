"""Flows and functions in threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from towerpack.core.prefetch import DATAPOINTS
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.iterators import FlowIterator
from towerpack.dataflow.parallel.executors import InlineExecutor, ThreadExecutor
from towerpack.dataflow.parallel.iterators import CopiesIterator, IndexedIterator, MappingIterator
from towerpack.dataflow.parallel.map_data import StrictMapData
from towerpack.dataflow.parallel.sources import Indices, Inputs
from towerpack.dataflow.parallel.stage import (
    ParallelStage,
    checked_count,
    checked_on_error,
    known_length,
)
from towerpack.dataflow.parallel.tasks import Executor
from towerpack.dataflow.parallel.work import SKIP, FlowWork, MapWork, StreamWork, Work
from towerpack.dataflow.source.iterable import as_flow
from towerpack.dataflow.stage.map import MapData


class MultiThreadMapData(ParallelStage):
    """Applies `map_func` to every datapoint in `num_thread` threads of this process.

    For functions that release the interpreter lock (decoding images, reading files); others are
    faster in processes. Every datapoint exactly once, in order: the same stream as `MapData` for
    any number of threads, `rng` included. The consumer's thread iterates over `ds`. If the function
    returns None, the datapoint is dropped; with `strict=True` this is an error.

    An error of the function is raised in its place, with its traceback; with `on_error='skip'` it
    is counted instead. `close()` waits at most two seconds for functions that are running, because
    a thread cannot be killed.

    >>> from towerpack.dataflow import DataFromList
    >>> flow = DataFromList([[1], [2], [3]], shuffle=False)
    >>> list(MultiThreadMapData(flow, 2, lambda dp: [dp[0] * 10]))
    [[10], [20], [30]]
    """

    keeps_rows = True

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        num_thread: int,
        map_func: Callable[..., Any],
        *,
        buffer_size: int = DATAPOINTS,
        strict: bool = False,
        seed: int = 0,
        on_error: str = "raise",
    ):
        self._map = (StrictMapData if strict else MapData)(ds, map_func, seed=seed)
        self.ds = self._map.ds
        self.num_thread = checked_count("num_thread", num_thread, 0)
        self.map_func, self.strict = map_func, strict
        self.buffer_size = checked_count("buffer_size", buffer_size, 1)
        self.on_error = checked_on_error(on_error)

    def inputs(self) -> Sequence[DataFlow]:
        return (self._map,)

    def sequential(self, epoch: Epoch) -> FlowIterator:
        threads, label = self.num_thread, self.label()

        def start() -> Executor:
            work = MapWork(self._map, epoch.branch, self.on_error)
            return ThreadExecutor([work] * threads, label) if threads else InlineExecutor(work)

        run = self._run(self.buffer_size, start)
        run.counters = [(self._map.statistics, 1)]
        return MappingIterator(
            run,
            self.ds.open(epoch),
            lambda source, index: Inputs(epoch.number, source, index),
        )


class MultiThreadRunner(ParallelStage):
    """Runs flows in `num_thread` threads, each with its own: `get_df()` is called for each.

    If the flows have random access, the threads share the indices: every datapoint exactly once, in
    order, the same stream as without threads. Otherwise each thread runs its flow independently,
    with its own random numbers, and their datapoints alternate, as a function of (seed, epoch,
    num_thread). The epoch then ends after `len(get_df())` datapoints, or when all flows have ended.

    >>> from towerpack.dataflow import DataFromList
    >>> list(MultiThreadRunner(lambda: DataFromList([[1], [2]], shuffle=False), 2, 2))
    [[1], [2]]
    """

    keeps_rows = True

    def __init__(
        self,
        get_df: Callable[[], DataFlow],
        num_prefetch: int,
        num_thread: int,
        *,
        on_error: str = "raise",
    ):
        if not callable(get_df):
            raise TypeError(
                f"expected a function that makes a DataFlow, received {get_df!r}; for a flow `ds` "
                "that threads may share, pass `lambda: ds`"
            )
        self.get_df = get_df
        self.ds = as_flow(get_df())
        self.num_prefetch = checked_count("num_prefetch", num_prefetch, 1)
        self.num_thread = checked_count("num_thread", num_thread, 0)
        self.on_error = checked_on_error(on_error)

    def inputs(self) -> Sequence[DataFlow]:
        return (self.ds,)

    @property
    def drops(self) -> bool | None:
        return None if self.on_error == SKIP else self.ds.drops

    def sequential(self, epoch: Epoch) -> FlowIterator:
        ds, threads, label = self.ds, self.num_thread, self.label()
        copies = max(1, threads)

        def work(number: int) -> Work:
            flow = ds if number == 0 else as_flow(self.get_df())
            if ds.random_access:
                return FlowWork(flow, epoch.branch, self.on_error)
            stream = StreamWork(flow, epoch.branch, self.on_error, copies)
            stream.be_copy(number)
            return stream

        def start() -> Executor:
            works = [work(number) for number in range(copies)]
            return ThreadExecutor(works, label) if threads else InlineExecutor(works[0])

        run = self._run(self.num_prefetch, start)
        if ds.random_access:
            size = ds.num_indices()
            return IndexedIterator(run, size, lambda at: Indices(epoch.number, at, size))
        self._warn_of_copies(ds, copies)
        return CopiesIterator(run, epoch.number, copies, known_length(ds) if copies > 1 else None)
