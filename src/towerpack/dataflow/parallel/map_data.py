"""A function applied to every datapoint by worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from towerpack.core.prefetch import DATAPOINTS
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.functions import locate_error, name_of
from towerpack.dataflow.iterators import FlowIterator
from towerpack.dataflow.parallel.iterators import IndexedIterator, MappingIterator
from towerpack.dataflow.parallel.sources import Indices, Inputs, ReadIndices
from towerpack.dataflow.parallel.stage import (
    TIMEOUT_SECONDS,
    ProcessStage,
    WorkerOptions,
    checked_count,
)
from towerpack.dataflow.parallel.tasks import TaskSource
from towerpack.dataflow.parallel.work import FlowWork, MapWork, Work
from towerpack.dataflow.stage.map import MapData
from towerpack.dataflow.workers.payload import travels

TRAVEL_BYTES = 1 << 25  # 32 MB: a larger pickle of a source would cost each worker too much


class StrictMapData(MapData):
    """A `MapData` whose function must return a datapoint."""

    def apply(self, rows: list[Any], indices: Any, epoch: Epoch) -> list[Any]:
        results = super().apply(rows, indices, epoch)
        for row, result, index in zip(rows, results, indices, strict=True):
            if row is not None and result is None:
                error = ValueError(
                    "expected a datapoint from the function, received None, which strict=True does "
                    "not allow; return a datapoint, or use strict=False to drop it"
                )
                locate_error(error, self, index, epoch)
                raise error
        return results

    def _note_drop(self) -> None:
        pass


class MultiProcessMapData(ProcessStage):
    """Applies `map_func` to every datapoint in `num_proc` worker processes.

    Every datapoint exactly once, in order, also when workers die: the same stream as `MapData` for
    any number of workers, `rng` included. If the function returns None, the datapoint is dropped;
    with `strict=True` this is an error.

    If `ds` has random access, the workers also read it, by index. Otherwise, or if it cannot be
    sent to them or is too large (32 MB without its arrays), it is read in this process.

    Args:
        num_proc: how many workers; 0 runs the same in this process, for a debugger.
        map_func: gets a datapoint, and `rng` if it has a parameter of that name. It is sent by
            value, so a lambda or a function of the main script works.
        buffer_size: datapoints made ahead of the consumer; fewer if they take more than 256 MB.
        seed: of `rng`.
        start_method, timeout, on_error: see `MultiProcessRunner`, also for workers that die and for
            the lifetime of arrays.

    >>> from towerpack.dataflow import DataFromList
    >>> flow = DataFromList([[1], [2], [3]], shuffle=False)
    >>> list(MultiProcessMapData(flow, 2, lambda dp: [dp[0] * 10]))
    [[10], [20], [30]]
    """

    keeps_rows = True

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        num_proc: int,
        map_func: Callable[..., Any],
        *,
        buffer_size: int = DATAPOINTS,
        strict: bool = False,
        seed: int = 0,
        start_method: str | None = None,
        timeout: float | None = TIMEOUT_SECONDS,
        on_error: str = "raise",
    ):
        self._map = (StrictMapData if strict else MapData)(ds, map_func, seed=seed)
        self.ds = self._map.ds
        self.num_proc = checked_count("num_proc", num_proc, 0)
        self.map_func, self.strict = map_func, strict
        self.buffer_size = checked_count("buffer_size", buffer_size, 1)
        self.options = WorkerOptions.checked(start_method, timeout, on_error)

    def inputs(self) -> Sequence[DataFlow]:
        return (self._map,)

    def sequential(self, epoch: Epoch) -> FlowIterator:
        if not self.ds.random_access:
            run = self._run(self.buffer_size, self._processes(lambda: self._map_work(epoch)))
            run.counters = [(self._map.statistics, 1)]
            return MappingIterator(
                run,
                self.ds.open(epoch),
                lambda source, index: Inputs(epoch.number, source, index),
            )
        size = self.ds.num_indices()
        here = self._reads_here

        def open_at(index: int, epoch: Epoch = epoch) -> TaskSource:
            if here():
                run.counters = [(self._map.statistics, 1)]
                return ReadIndices(self.ds, epoch, index, size)
            return Indices(epoch.number, index, size)

        def following() -> TaskSource:
            return open_at(0, epoch.at(epoch.number + 1))

        def work() -> Work:
            if here():
                return self._map_work(epoch)
            return FlowWork(self._map, epoch.branch, self.options.on_error)

        run = self._run(self.buffer_size, self._processes(work), following)
        return IndexedIterator(run, size, open_at)

    def _map_work(self, epoch: Epoch) -> Work:
        return MapWork(self._map, epoch.branch, self.options.on_error)

    def _reads_here(self) -> bool:
        """Whether the source is read in this process; determined once."""
        if self.num_proc == 0 or self.options.start_method == "fork":
            return False
        if self._source_stays is None:
            self._source_stays = not travels(self.ds, TRAVEL_BYTES)
        return self._source_stays

    _source_stays: bool | None = None


class MultiProcessMapDataComponentSharedArray(MultiProcessMapData):
    """Applies `map_func` to component `index` in worker processes; checks the array it returns.

    Ordered, every datapoint exactly once, as `MultiProcessMapData`, which also sends arrays through
    shared memory: this class only adds the check of shape and dtype.

    >>> from towerpack.dataflow import DataFromList
    >>> flow = DataFromList([[1, 'a'], [2, 'b']], shuffle=False)
    >>> twice = MultiProcessMapDataComponentSharedArray(
    ...     flow, 1, lambda x: np.full(2, x), output_shape=(2,), output_dtype='int64')
    >>> list(twice)
    [[array([1, 1]), 'a'], [array([2, 2]), 'b']]
    """

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        num_proc: int,
        map_func: Callable[..., Any],
        output_shape: tuple[int, ...],
        output_dtype: Any,
        index: int | str = 0,
        **options: Any,
    ):
        component = _Component(map_func, tuple(output_shape), np.dtype(output_dtype), index)
        super().__init__(ds, num_proc, component, **options)


class _Component:
    def __init__(
        self,
        func: Callable[..., Any],
        shape: tuple[int, ...],
        dtype: np.dtype,
        index: int | str,
    ):
        self.func, self.shape, self.dtype, self.index = func, shape, dtype, index
        self.__name__ = name_of(func)

    def __call__(self, datapoint: Any) -> Any:
        if isinstance(datapoint, tuple):
            datapoint = list(datapoint)
        value = self.func(datapoint[self.index])
        if value is None:
            return None
        array = np.asarray(value)
        if array.shape != self.shape or array.dtype != self.dtype:
            raise ValueError(
                f"component {self.index!r}: expected an array of shape {self.shape} and dtype "
                f"{self.dtype} from {self.__name__}, received {array.shape} {array.dtype}; return "
                "that, or correct output_shape and output_dtype"
            )
        datapoint[self.index] = array
        return datapoint
