"""Anything that can be iterated as a source: iterables, generator functions, generators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from towerpack.dataflow.base import DataFlow, FlowIterator, Pass, Source
from towerpack.dataflow.iterators import OnePass, ReplayIterator


class DataFromIterable(Source):
    """The items of an iterable, in its order.

    With random access if it is a sequence, and a `len()` if it has one. A pass calls `iter` on it,
    so an iterator, which can only be consumed once, gives one pass only.

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


class DataFromGenerator(DataFlow):
    """The items of a generator: give the function that makes it, and every pass calls it anew.

    The function is called without arguments. A generator itself gives one pass only. There is no
    `len()`. Restoring a state draws and drops what came before: exact if the generator always gives
    the same.

    >>> list(DataFromGenerator(lambda: ([i] for i in range(2))))
    [[0], [1]]
    """

    def __init__(self, gen: Callable[[], Iterable[Any]] | Iterable[Any]):
        if not callable(gen) and not hasattr(gen, "__iter__"):
            raise TypeError(
                f"expected a generator function or a generator, received {gen!r} "
                f"({type(gen).__name__})"
            )
        self.gen = gen
        self._one_pass = OnePass(gen) if isinstance(gen, Iterator) else None

    def generate(self) -> Iterable[Any]:
        return self.gen() if callable(self.gen) else self.gen

    def iterator(self, pass_: Pass) -> FlowIterator:
        return self._one_pass.begin() if self._one_pass else ReplayIterator(self, pass_)
