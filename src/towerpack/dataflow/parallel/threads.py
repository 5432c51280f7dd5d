"""Flows and functions in threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from towerpack.dataflow.base import DataFlow, FlowIterator, Pass, as_flow
from towerpack.dataflow.blame import name_of
from towerpack.dataflow.map import MapData
from towerpack.dataflow.parallel.inline import InlineExecutor
from towerpack.dataflow.parallel.iterators import CopiesIterator, IndexedIterator, MappingIterator
from towerpack.dataflow.parallel.map_data import StrictMapData
from towerpack.dataflow.parallel.old_names import old_names
from towerpack.dataflow.parallel.sources import Indices, Inputs
from towerpack.dataflow.parallel.stage import (
    ParallelStage,
    checked_count,
    checked_on_error,
    known_length,
)
from towerpack.dataflow.parallel.tasks import Executor
from towerpack.dataflow.parallel.thread_pool import ThreadExecutor
from towerpack.dataflow.parallel.work import SKIP, FlowWork, MapWork, StreamWork, Work


class MultiThreadMapData(ParallelStage):
    """Applies `map_func` to every datapoint in `num_thread` threads of this process.

    For functions that leave the interpreter lock (decoding images, reading files); others are
    quicker in processes. Every datapoint exactly once, in order: the same stream as `MapData` for
    any number of threads, `rng` included. `ds` is iterated by the consumer's thread. A pass is one
    pass of `ds`. A None drops the datapoint; with `strict=True` it is an error.

    An error of the function is raised here, in its place, with its traceback; with
    `on_error='skip'` it is counted instead. `close()` waits until the functions under way return,
    for two seconds at most: a thread cannot be killed.

    >>> from towerpack.dataflow import DataFromList
    >>> flow = DataFromList([[1], [2], [3]], shuffle=False)
    >>> list(MultiThreadMapData(flow, 2, lambda dp: [dp[0] * 10]))
    [[10], [20], [30]]
    """

    @old_names(nr_thread="num_thread")
    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        num_thread: int,
        map_func: Callable[..., Any],
        *,
        buffer_size: int = 200,
        strict: bool = False,
        seed: int = 0,
        on_error: str = "raise",
    ):
        self._map = (StrictMapData if strict else MapData)(ds, map_func, seed=seed)
        self.ds, self.height = self._map.ds, self._map.height
        self.num_thread = checked_count("num_thread", num_thread, 0)
        self.map_func, self.strict = map_func, strict
        self.buffer_size = checked_count("buffer_size", buffer_size, 1)
        self.on_error = checked_on_error(on_error)

    def inputs(self) -> Sequence[DataFlow]:
        return (self._map,)

    def label(self) -> str:
        return f"{type(self).__name__}({name_of(self.map_func)})"

    @property
    def drops(self) -> bool | None:  # type: ignore[override]
        return self._map.drops

    def __len__(self) -> int:
        self._check_len()
        return len(self._map)

    def iterator(self, pass_: Pass) -> FlowIterator:
        threads, label = self.num_thread, self.label()

        def start() -> Executor:
            work = MapWork(self._map, pass_.branch, self.on_error)
            return ThreadExecutor([work] * threads, label) if threads else InlineExecutor(work)

        run = self._run(self.buffer_size, start)
        run.counters = [(self._map.statistics, 1)]
        return MappingIterator(
            run,
            self.ds.iterator(pass_),
            lambda source, index: Inputs(pass_.epoch, source, index),
        )


class MultiThreadRunner(ParallelStage):
    """Runs flows in `num_thread` threads, each with its own: `get_df()` is called for each.

    Where they have random access the threads share the indices: every datapoint exactly once, in
    order, the same stream as without threads. Otherwise each thread runs its flow independently,
    with random numbers of its own, and their datapoints come in turn, as a function of (seed,
    epoch, num_thread); a pass then ends after `len(get_df())` datapoints, or when all have ended.

    >>> from towerpack.dataflow import DataFromList
    >>> list(MultiThreadRunner(lambda: DataFromList([[1], [2]], shuffle=False), 2, 2))
    [[1], [2]]
    """

    @old_names(nr_prefetch="num_prefetch", nr_thread="num_thread")
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
        self.height = self.ds.height
        self.num_prefetch = checked_count("num_prefetch", num_prefetch, 1)
        self.num_thread = checked_count("num_thread", num_thread, 0)
        self.on_error = checked_on_error(on_error)

    def inputs(self) -> Sequence[DataFlow]:
        return (self.ds,)

    @property
    def drops(self) -> bool | None:  # type: ignore[override]
        return None if self.on_error == SKIP else self.ds.drops

    def __len__(self) -> int:
        self._check_len()
        return len(self.ds)

    def iterator(self, pass_: Pass) -> FlowIterator:
        ds, threads, label = self.ds, self.num_thread, self.label()
        copies = max(1, threads)

        def work(number: int) -> Work:
            flow = ds if number == 0 else as_flow(self.get_df())
            if ds.random_access:
                return FlowWork(flow, pass_.branch, self.on_error)
            stream = StreamWork(flow, pass_.branch, self.on_error, copies)
            stream.be_copy(number)
            return stream

        def start() -> Executor:
            works = [work(number) for number in range(copies)]
            return ThreadExecutor(works, label) if threads else InlineExecutor(works[0])

        run = self._run(self.num_prefetch, start)
        if ds.random_access:
            size = ds.span()
            return IndexedIterator(run, size, lambda at: Indices(pass_.epoch, at, size))
        self._warn_of_copies(ds, copies)
        return CopiesIterator(run, pass_.epoch, copies, known_length(ds) if copies > 1 else None)


MultiThreadPrefetchData = MultiThreadRunner  # its former name
