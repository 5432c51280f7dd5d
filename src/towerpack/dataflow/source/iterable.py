"""Anything that can be iterated over as a flow: sequences, iterables, generators."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from towerpack.dataflow.base import DataFlow, Indices
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.iterators import FlowIterator, OnceIterator, ReplayIterator


class Source(DataFlow):
    """Any iterable as a flow: a list, a map-style data set of PyTorch, the result of a generator.

    With `__len__` and `__getitem__` it has random access. Otherwise each epoch calls `iter` on it.
    A generator, or another iterator, gives one epoch only; beginning a second one is an error.
    """

    def __init__(self, data: Any):
        self.data = data
        self._indexable = is_indexable(data)
        self._begun = False

    def __len__(self) -> int:
        return len(self.data)

    def indexable(self) -> bool:
        return self._indexable

    def rows(self, indices: Indices, epoch: Epoch) -> list[Any]:
        data = self.data
        many = getattr(data, "__getitems__", None)  # PyTorch's protocol for whole batches
        if many is not None:
            return list(many([int(index) for index in indices]))
        return [data[index] for index in map(int, indices)]

    def sequential(self, epoch: Epoch) -> FlowIterator:
        data = self.data
        if not isinstance(data, Iterator):
            return ReplayIterator(epoch, lambda: iter(data))
        closed = inspect.isgenerator(data) and inspect.getgeneratorstate(data) == inspect.GEN_CLOSED
        if self._begun or closed:
            why = "is exhausted" if closed else "has been begun before"
            raise RuntimeError(
                f"this {type(data).__name__} {why}: it can be iterated only once. Pass the "
                "function that makes it, which every epoch calls again: DataFromGenerator(function)"
            )
        self._begun = True
        return OnceIterator(data)


class DataFromIterable(Source):
    """The items of an iterable, in its order.

    It has random access if it is a sequence, and a `len()` if the iterable has one. Each epoch
    calls `iter` on it, so an iterator, which can only be consumed once, gives one epoch only.

    >>> list(DataFromIterable({"a", }))
    ['a']
    """

    def __init__(self, iterable: Iterable[Any]):
        if not hasattr(iterable, "__iter__"):
            raise TypeError(
                f"expected something to iterate over, received {iterable!r} "
                f"({type(iterable).__name__})"
            )
        super().__init__(iterable)

    def __len__(self) -> int:
        if not hasattr(self.data, "__len__"):
            raise TypeError(f"DataFromIterable has no len(): a {type(self.data).__name__} has none")
        return len(self.data)


class DataFromGenerator(Source):
    """The items of a generator: pass the function that makes it, which each epoch calls again.

    The function is called without arguments. A generator itself gives one epoch only. There is no
    `len()`. A state is restored by running the generator from its beginning, which is exact if it
    always gives the same items.

    >>> list(DataFromGenerator(lambda: ([i] for i in range(2))))
    [[0], [1]]
    """

    def __init__(self, gen: Callable[[], Iterable[Any]] | Iterable[Any]):
        if not callable(gen) and not hasattr(gen, "__iter__"):
            raise TypeError(
                f"expected a generator function or a generator, received {gen!r} "
                f"({type(gen).__name__})"
            )
        super().__init__(gen)
        self.gen = gen

    def __len__(self) -> int:
        raise TypeError("DataFromGenerator has no len(): it is not known in advance")

    def indexable(self) -> bool:
        return False

    def sequential(self, epoch: Epoch) -> FlowIterator:
        gen = self.gen
        if callable(gen):
            return ReplayIterator(epoch, lambda: iter(gen()))
        return super().sequential(epoch)


def is_indexable(data: Any) -> bool:
    """Whether `data[0]` to `data[len(data) - 1]` are its datapoints."""
    if isinstance(data, Mapping) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return False
    # PyTorch's IterableDataset inherits a `__getitem__` that only raises.
    return all(base.__name__ != "IterableDataset" for base in type(data).__mro__)


def is_frame(data: Any) -> bool:
    """Whether it is a table of named columns: a frame of pandas or polars."""
    return hasattr(data, "columns") and hasattr(data, "dtypes") and hasattr(data, "to_numpy")


def require_positions(data: Any) -> None:
    """Refuses data with rows where `data[i]` is not row `i`."""
    if is_frame(data) or hasattr(data, "iloc"):
        columns = "frame" if is_frame(data) else "series.to_numpy()"
        raise TypeError(
            f"expected a sequence of datapoints, received a {type(data).__name__}, in which [i] is "
            f"not row i; use DataFromArrays({columns})"
        )
    if isinstance(data, tuple) and data and all(isinstance(x, np.ndarray) for x in data):
        raise TypeError(
            f"expected a sequence of datapoints, received a tuple of {len(data)} arrays; to get "
            "their rows use DataFromArrays(x, y)"
        )


def as_flow(data: Any) -> DataFlow:
    """Returns a flow as it is, and makes one of any other iterable or sequence."""
    if isinstance(data, DataFlow):
        return data
    if isinstance(data, Mapping | str | bytes):
        raise TypeError(
            f"expected a DataFlow, a sequence or an iterable, received a {type(data).__name__}; "
            "for a dict of arrays use DataFromArrays(arrays)"
        )
    require_positions(data)
    if isinstance(data, type):
        raise TypeError(
            f"expected a DataFlow, a sequence or an iterable, received the class {data.__name__}; "
            f"make one of it: {data.__name__}(...)"
        )
    if hasattr(data, "__iter__") or is_indexable(data):
        return Source(data)
    raise TypeError(
        f"expected a DataFlow, a sequence or an iterable, received {data!r} ({type(data).__name__})"
    )
