"""One epoch of the data, and the random numbers and orders that belong to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np

from towerpack.core.seeds import Stream

Allocate = Callable[[tuple[int, ...], np.dtype], np.ndarray]
"""Makes an uninitialized array: `numpy.empty`, or a function that uses shared memory."""

T = TypeVar("T")
KEPT = 4  # values in a cache: two epochs overlap at their border, in two branches of a pipeline


@dataclass(frozen=True)
class Epoch:
    """Which epoch is read, in which branch of the pipeline, and where its batches are allocated.

    A stage with several inputs gives each its own `branch`, so that two shuffled sources that are
    joined are not shuffled alike. Stages with one input pass the epoch on unchanged: an additional
    stage never changes the numbers that are drawn below it.
    """

    number: int = 0
    branch: tuple[int, ...] = ()
    allocate: Allocate = field(default=np.empty, compare=False)

    # Requested for every datapoint, so each is made once.
    _inputs: dict[int, Epoch] = field(default_factory=dict, init=False, repr=False, compare=False)
    _latest: list[Epoch] = field(default_factory=list, init=False, repr=False, compare=False)

    def input(self, which: int) -> Epoch:
        """The same epoch for input number `which` of a stage with several inputs."""
        made = self._inputs.get(which)
        if made is None:
            made = self._inputs[which] = replace(self, branch=(*self.branch, which))
        return made

    def at(self, number: int) -> Epoch:
        """Epoch `number` of the same branch."""
        if number == self.number:
            return self
        if not self._latest or self._latest[0].number != number:
            self._latest[:] = [replace(self, number=number)]
        return self._latest[0]


class RandomStage:
    """Mixin of flows that draw random numbers: one generator for each (seed, epoch, index)."""

    seed: int = 0
    height: int

    def stream(self, epoch: Epoch, role: str) -> Stream:
        """The stream of this flow for one purpose, `role`.

        Streams are cached, because a new one costs more than a jump in an existing one. Each thread
        has its own, because a stream has only one generator, which it repositions.
        """
        cached = self.__dict__.get("_streams")
        if cached is None:
            cached = self.__dict__.setdefault("_streams", _Streams())
        streams: dict[Any, Stream] = cached.by_key
        key = (self.seed, epoch.branch, role)
        stream = streams.get(key)
        if stream is None:
            stream = streams[key] = Stream(self.seed, *epoch.branch, self.height, role)
        return stream


class _Streams(threading.local):
    def __init__(self) -> None:
        self.by_key: dict[Any, Stream] = {}

    def __reduce__(self) -> tuple[type[_Streams], tuple[()]]:
        return _Streams, ()  # a copy computes its own


class EpochCache(Generic[T]):
    """Keeps what was computed for the latest few epochs, such as an order; thread-safe.

    A copy in another process begins empty: computing an order is cheaper than sending it.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, T] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        found = self._kept.get(key)
        if found is None:
            found = compute()
            with self._lock:
                while len(self._kept) >= KEPT:
                    del self._kept[next(iter(self._kept))]
                self._kept[key] = found
        return found

    def __reduce__(self) -> tuple[type[EpochCache], tuple[()]]:
        return EpochCache, ()
