"""A function applied to every datapoint by worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from towerpack.core.payload import travels
from towerpack.dataflow.base import DataFlow, FlowIterator, Pass
from towerpack.dataflow.blame import blame, name_of
from towerpack.dataflow.map import MapData
from towerpack.dataflow.parallel.iterators import IndexedIterator, MappingIterator
from towerpack.dataflow.parallel.old_names import old_names
from towerpack.dataflow.parallel.sources import Indices, Inputs, ReadIndices
from towerpack.dataflow.parallel.stage import (
    TIMEOUT_SECONDS,
    ProcessStage,
    WorkerOptions,
    checked_count,
)
from towerpack.dataflow.parallel.tasks import TaskSource
from towerpack.dataflow.parallel.work import FlowWork, MapWork, Work

TRAVEL_BYTES = 1 << 25  # 32 MB: a larger pickle of a source would cost each worker too much


class StrictMapData(MapData):
    """A `MapData` whose function must return a datapoint."""

    def apply(self, datapoint: Any, index: int, pass_: Pass) -> Any:
        return self._checked(super().apply(datapoint, index, pass_), index, pass_)

    def get_rows(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> list[Any]:
        return [self.get(int(index), pass_) for index in indices]

    def _checked(self, result: Any, index: int, pass_: Pass) -> Any:
        if result is None:
            error = ValueError(
                "expected a datapoint from the function, received None, which strict=True does not "
                "allow; return a datapoint, or use strict=False to drop it"
            )
            blame(error, self, index, pass_)
            raise error
        return result

    def _note_drop(self) -> None:
        pass


class MultiProcessMapData(ProcessStage):
    """Applies `map_func` to every datapoint in `num_proc` worker processes.

    Every datapoint exactly once, in order, also when workers die: the same stream as `MapData` for
    any number of workers, `rng` included. A pass is one pass of `ds`. A None drops the datapoint;
    with `strict=True` it is an error.

    Where `ds` has random access the workers also read it, by index. Otherwise, or if it is too
    large to be sent to them (32 MB without its arrays) or cannot be, it is read in this process.

    Args:
        num_proc: how many workers; 0 runs the same in this process, for a debugger.
        map_func: gets a datapoint, and `rng` if it has a parameter of that name. It travels by
            value: a lambda or a function of the main script will do.
        buffer_size: datapoints made ahead of the consumer; fewer if they take more than 256 MB.
        seed: of `rng`.
        start_method, timeout, on_error: see `MultiProcessRunner`, also for workers that die and for
            what becomes of the arrays.

    >>> from towerpack.dataflow import DataFromList
    >>> flow = DataFromList([[1], [2], [3]], shuffle=False)
    >>> list(MultiProcessMapData(flow, 2, lambda dp: [dp[0] * 10]))
    [[10], [20], [30]]
    """

    @old_names(nr_proc="num_proc")
    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        num_proc: int,
        map_func: Callable[..., Any],
        *,
        buffer_size: int = 200,
        strict: bool = False,
        seed: int = 0,
        start_method: str | None = None,
        timeout: float | None = TIMEOUT_SECONDS,
        on_error: str = "raise",
    ):
        self._map = (StrictMapData if strict else MapData)(ds, map_func, seed=seed)
        self.ds, self.height = self._map.ds, self._map.height
        self.num_proc = checked_count("num_proc", num_proc, 0)
        self.map_func, self.strict = map_func, strict
        self.buffer_size = checked_count("buffer_size", buffer_size, 1)
        self.options = WorkerOptions.checked(start_method, timeout, on_error)

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
        if not self.ds.random_access:
            run = self._run(self.buffer_size, self._processes(lambda: self._map_work(pass_)))
            run.counters = [(self._map.statistics, 1)]
            return MappingIterator(
                run,
                self.ds.iterator(pass_),
                lambda source, index: Inputs(pass_.epoch, source, index),
            )
        size = self.ds.span()
        here = self._reads_here

        def open_at(index: int, pass_: Pass = pass_) -> TaskSource:
            if here():
                run.counters = [(self._map.statistics, 1)]
                return ReadIndices(self.ds, pass_, index, size)
            return Indices(pass_.epoch, index, size)

        def following() -> TaskSource:
            return open_at(0, pass_.at_epoch(pass_.epoch + 1))

        def work() -> Work:
            if here():
                return self._map_work(pass_)
            return FlowWork(self._map, pass_.branch, self.options.on_error)

        run = self._run(self.buffer_size, self._processes(work), following)
        return IndexedIterator(run, size, open_at)

    def _map_work(self, pass_: Pass) -> Work:
        return MapWork(self._map, pass_.branch, self.options.on_error)

    def _reads_here(self) -> bool:
        """Whether the source stays in this process; found out once."""
        if self.num_proc == 0 or self.options.start_method == "fork":
            return False
        if self._source_stays is None:
            self._source_stays = not travels(self.ds, TRAVEL_BYTES)
        return self._source_stays

    _source_stays: bool | None = None


MultiProcessMapDataZMQ = MultiProcessMapData
