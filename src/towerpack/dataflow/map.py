"""A function applied to every datapoint."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from towerpack.core import logger, tree
from towerpack.dataflow.base import (
    DataFlow,
    FlowIterator,
    IndexIterator,
    Pass,
    RandomStage,
    Stage,
    State,
)
from towerpack.dataflow.blame import blame, name_of, takes_rng
from towerpack.dataflow.stacking import SMALL_ROW


class MapData(RandomStage, Stage):
    """Applies `func` to every datapoint.

    Ordered, every datapoint once; random access is kept. `func` gets a shallow copy of the
    datapoint, so it may replace components of it. If it returns None, the datapoint is dropped: a
    warning is logged once, and `len()` is no longer known. If it has a parameter named `rng`, it
    gets a `numpy.random.Generator` of its own for each datapoint, fixed by (seed, epoch, index),
    and valid during the call: so augmentation is the same for any number of workers.

    >>> from towerpack.dataflow import DataFromList
    >>> flow = MapData(DataFromList([[1], [2]], shuffle=False), lambda dp: [dp[0] * 10])
    >>> list(flow)
    [[10], [20]]
    >>> noisy = MapData(flow, lambda dp, rng: [dp[0] + rng.integers(3)], seed=1)
    >>> list(noisy.iterate(epoch=0)) == list(noisy.iterate(epoch=0))
    True
    """

    def __init__(self, ds: DataFlow | Iterable[Any], func: Callable[..., Any], *, seed: int = 0):
        super().__init__(ds)
        if not callable(func):
            raise TypeError(f"expected a function, received {func!r} ({type(func).__name__})")
        self.func, self.seed = func, seed
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
    def drops(self) -> bool | None:  # type: ignore[override]
        return self.ds.drops or None  # what the function will return is not known

    def get(self, index: int, pass_: Pass) -> Any:
        datapoint = self.ds.get(index, pass_)
        if datapoint is None:
            return None
        return self.apply(datapoint, index, pass_)

    def get_rows(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> list[Any]:
        rows = self.ds.get_rows(indices, pass_)
        if type(None) in set(map(type, rows)):
            places = [place for place, row in enumerate(rows) if row is not None]
            results = [None] * len(rows)
            for place in places:
                results[place] = self.apply(rows[place], int(indices[place]), pass_)
            return results
        if not self.ds.fresh_rows:
            rows = [_shallow_copy(row) for row in rows]
        pending, func = iter(rows), self.func
        try:
            # Comprehensions, for speed; how far they came, the iterator knows.
            if self._with_rng:
                generator, epoch = self.stream(pass_, "map").generator, pass_.epoch
                numbers = indices.tolist() if isinstance(indices, np.ndarray) else indices
                pairs = zip(numbers, pending, strict=True)
                results = [func(row, rng=generator(epoch, index)) for index, row in pairs]
            else:
                results = [func(row) for row in pending]
        except Exception as error:
            failed = len(rows) - 1 - operator.length_hint(pending)
            blame(error, self, indices[failed], pass_)
            raise
        if type(None) in set(map(type, results)):
            self._note_drop()
        return results

    def each_row(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> Iterator[Any]:
        numbers = indices.tolist() if isinstance(indices, np.ndarray) else indices
        for index, row in zip(numbers, _each_input(self.ds, indices, pass_), strict=True):
            yield None if row is None else self.apply(row, index, pass_)

    def apply(self, datapoint: Any, index: int, pass_: Pass) -> Any:
        """The function's result for the datapoint at `index`; None if it drops it."""
        try:
            if self._with_rng:
                rng = self.stream(pass_, "map").generator(pass_.epoch, index)
                result = self.func(_shallow_copy(datapoint), rng=rng)
            else:
                result = self.func(_shallow_copy(datapoint))
        except Exception as error:
            blame(error, self, index, pass_)
            raise
        if result is None:
            self._note_drop()
        return result

    def iterator(self, pass_: Pass) -> FlowIterator:
        return IndexIterator(self, pass_) if self.walks_indices else _MapIterator(self, pass_)

    def _note_drop(self) -> None:
        if not self._dropped:
            self._dropped = True
            logger.warning(
                "%s returned None, so that datapoint is dropped and len() is not known any more; "
                "if it was meant to return a datapoint, it lacks a `return`",
                self.label(),
            )


class _MapIterator(FlowIterator):
    """Over an input that is iterated: the index is the count of its datapoints in this pass."""

    def __init__(self, flow: MapData, pass_: Pass):
        self._flow, self._pass = flow, pass_
        self._input, self._index = flow.ds.iterator(pass_), 0

    def __next__(self) -> Any:
        while True:
            datapoint = next(self._input)
            index, self._index = self._index, self._index + 1
            result = self._flow.apply(datapoint, index, self._pass)
            if result is not None:
                return result

    def state(self) -> State:
        return {"input": self._input.state(), "index": self._index}

    def restore(self, state: State) -> None:
        self._input.restore(state["input"])
        self._index = state["index"]

    def close(self) -> None:
        self._input.close()


def _each_input(ds: DataFlow, indices: Sequence[int] | np.ndarray, pass_: Pass) -> Iterator[Any]:
    """Small datapoints all at once, which is cheaper; large ones each when its turn comes."""
    head = ds.get_rows(indices[:1], pass_)
    yield from head
    if tree.size_in_bytes(head) <= SMALL_ROW:
        yield from ds.get_rows(indices[1:], pass_)
    else:
        yield from ds.each_row(indices[1:], pass_)


def _shallow_copy(datapoint: Any) -> Any:
    kind = type(datapoint)
    if kind is list:
        return datapoint[:]
    if kind is dict:
        return datapoint.copy()
    # A tuple or an array needs none; what else there is may be a subclass of list or dict.
    return copy.copy(datapoint) if isinstance(datapoint, list | dict) else datapoint
