"""Stages that make one datapoint of one: functions, selected components, filters."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from towerpack.core import logger
from towerpack.dataflow.base import DataFlow, Indices
from towerpack.dataflow.epoch import Epoch, RandomStage
from towerpack.dataflow.functions import (
    checked_function,
    component,
    locate_error,
    name_of,
    takes_rng,
)
from towerpack.dataflow.iterators import FlowIterator
from towerpack.dataflow.stage.base import ApplyIterator, Stage


class MapData(RandomStage, Stage):
    """Applies `func` to every datapoint.

    Ordered, every datapoint once; random access is kept. `func` gets a shallow copy of the
    datapoint, so it may replace components of it. If it returns None, the datapoint is dropped: a
    warning is logged once, and `len()` is no longer known. If it has a parameter named `rng`, it
    gets a `numpy.random.Generator` for each datapoint, which is fixed by (seed, epoch, index) and
    valid during the call. So augmentation is the same for any number of workers.

    >>> from towerpack.dataflow import DataFromList
    >>> flow = MapData(DataFromList([[1], [2]]), lambda dp: [dp[0] * 10])
    >>> list(flow)
    [[10], [20]]
    >>> noisy = MapData(flow, lambda dp, rng: [dp[0] + rng.integers(3)], seed=1)
    >>> list(noisy.iterate(epoch=0)) == list(noisy.iterate(epoch=0))
    True
    """

    def __init__(self, ds: DataFlow | Iterable[Any], func: Callable[..., Any], *, seed: int = 0):
        super().__init__(ds)
        self.func, self.seed = checked_function(func), seed
        self._with_rng = takes_rng(func)
        self._dropped = False

    def label(self) -> str:
        return f"{type(self).__name__}({name_of(self.func)})"

    def __len__(self) -> int:
        if self._dropped:
            raise TypeError(
                f"{self.label()} has no len(): its function has dropped datapoints by returning "
                "None"
            )
        return len(self.ds)

    @property
    def drops(self) -> bool | None:
        return self.ds.drops or None  # it is unknown what the function will return

    def apply(self, rows: list[Any], indices: Indices, epoch: Epoch) -> list[Any]:
        results: list[Any] = []
        func, add = self.func, results.append
        try:
            # One loop without calls of our own: for small datapoints they would be half the time.
            if self._with_rng:
                generator, number = self.stream(epoch, "map").generator, epoch.number
                numbers = indices.tolist() if isinstance(indices, np.ndarray) else indices
                for row, index in zip(rows, numbers, strict=True):
                    rng = generator(number, index)
                    add(None if row is None else func(_shallow_copy(row), rng=rng))
            else:
                for row in rows:
                    copied = row[:] if type(row) is list else _shallow_copy(row)
                    add(None if row is None else func(copied))
        except Exception as error:
            locate_error(error, self, indices[len(results)], epoch)
            raise
        if not self._dropped and _has_none(results) and not _has_none(rows):
            self._note_drop()
        return results

    def _note_drop(self) -> None:
        self._dropped = True
        logger.warning(
            "%s returned None, so that datapoint is dropped and len() is no longer known; if the "
            "function should return a datapoint, it lacks a `return`",
            self.label(),
        )


def _has_none(rows: list[Any]) -> bool:
    return type(None) in set(map(type, rows))


def _shallow_copy(datapoint: Any) -> Any:
    kind = type(datapoint)
    if kind is list:
        return datapoint[:]
    if kind is dict:
        return datapoint.copy()
    # A tuple or an array needs none; what remains may be a subclass of list or dict.
    return copy.copy(datapoint) if isinstance(datapoint, list | dict) else datapoint


class MapDataComponent(MapData):
    """Applies `func` to one component of every datapoint.

    Order, `rng` and dropped datapoints are as in `MapData`. `index` is a position, or a key if
    datapoints are dicts. A tuple becomes a list.

    >>> list(MapDataComponent([[1, "a"], [2, "b"]], lambda x: x * 10, index=0))
    [[10, 'a'], [20, 'b']]
    """

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        func: Callable[..., Any],
        index: int | str = 0,
        *,
        seed: int = 0,
    ):
        on_component = (
            _on_component_with_rng if takes_rng(checked_function(func)) else _on_component
        )
        super().__init__(ds, functools.partial(on_component, func, index), seed=seed)
        self._name = f"{name_of(func)}, {index!r}"

    def label(self) -> str:
        return f"{type(self).__name__}({self._name})"


def _on_component(func: Callable[..., Any], index: int | str, datapoint: Any, **kwargs: Any) -> Any:
    if isinstance(datapoint, tuple):
        datapoint = list(datapoint)
    result = func(component(datapoint, index), **kwargs)
    if result is None:
        return None
    datapoint[index] = result  # of the shallow copy that MapData made
    return datapoint


def _on_component_with_rng(
    func: Callable[..., Any], index: int | str, datapoint: Any, rng: np.random.Generator
) -> Any:
    return _on_component(func, index, datapoint, rng=rng)


class SelectComponent(Stage):
    """Selects components of every datapoint, in the given order.

    Random access and whole batches are kept. For dicts, give keys: the result is a dict of them.

    >>> list(SelectComponent([["a", 1, 2.5]], [2, 0]))
    [[2.5, 'a']]
    """

    keeps_rows = True

    def __init__(self, ds: DataFlow | Iterable[Any], idxs: Sequence[int | str]):
        super().__init__(ds)
        self.idxs = list(idxs)

    def pick(self, datapoint: Any) -> Any:
        if isinstance(datapoint, dict):
            return {index: component(datapoint, index) for index in self.idxs}
        return [component(datapoint, index) for index in self.idxs]

    def apply(self, rows: list[Any], indices: Indices, epoch: Epoch) -> list[Any]:
        return [None if row is None else self.pick(row) for row in rows]

    def gather(self, indices: Indices, epoch: Epoch) -> Any:
        return self.pick(self.ds.read_batch(indices, epoch))

    def sequential(self, epoch: Epoch) -> FlowIterator:
        return ApplyIterator(self, epoch, key=None)


class FilterData(Stage):
    """Keeps the datapoints for which `func` returns true.

    Ordered, each once. It has no `len()`. By index, the other datapoints are None, so workers can
    still share the indices of this flow; a stage above it that counts datapoints (BatchData) has to
    iterate.

    >>> list(FilterData(range(6), lambda x: x % 2 == 0))
    [0, 2, 4]
    """

    drops = True

    def __init__(self, ds: DataFlow | Iterable[Any], func: Callable[[Any], Any]):
        super().__init__(ds)
        self.func = checked_function(func)

    def label(self) -> str:
        return f"{type(self).__name__}({name_of(self.func)})"

    def __len__(self) -> int:
        raise TypeError(f"{self.label()} has no len(): how many datapoints pass is not known")

    def apply(self, rows: list[Any], indices: Indices, epoch: Epoch) -> list[Any]:
        results = []
        for row, index in zip(rows, indices, strict=True):
            try:
                results.append(row if row is not None and self.func(row) else None)
            except Exception as error:
                locate_error(error, self, index, epoch)
                raise
        return results
