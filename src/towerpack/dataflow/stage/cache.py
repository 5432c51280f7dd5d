"""A flow kept in memory after it has been read once."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from typing import Any

from towerpack.dataflow.base import DataFlow, Indices
from towerpack.dataflow.epoch import Epoch, EpochCache, RandomStage
from towerpack.dataflow.iterators import FlowIterator, State
from towerpack.dataflow.stage.base import Stage


class CacheData(RandomStage, Stage):
    """Reads each datapoint of the input once and keeps it in memory.

    It keeps the input's epoch 0, so random augmentation belongs after this stage. With
    `shuffle=True` every epoch has another order. Ordered otherwise, each once. Random access is
    kept, and then datapoints are read when they are first needed. An input without random access is
    read as far as an iterator needs it, and with `shuffle` to its end at once.

    The datapoints are the kept objects, not copies: do not write into them. Every worker process
    has a cache of its own, so put this stage above the workers, not below them.

    >>> flow = CacheData(range(3))
    >>> list(flow), list(flow)
    ([0, 1, 2], [0, 1, 2])
    """

    keeps_rows = True

    def __init__(self, ds: DataFlow | Iterable[Any], shuffle: bool = False, *, seed: int = 0):
        super().__init__(ds)
        self.shuffle, self.seed = shuffle, seed
        self._by_index = _IndexedMemory()
        self._in_order = _SequentialMemory()
        self._orders: EpochCache[Any] = EpochCache()

    @property
    def reorders(self) -> bool:  # type: ignore[override]
        return self.shuffle

    def place(self, index: int, size: int, epoch: Epoch) -> int:
        """Where in the memory the datapoint of an index is."""
        if not self.shuffle:
            return index
        order = self._orders.get(
            (epoch.number, epoch.branch, size, self.seed),
            lambda: self.stream(epoch, "order").generator(epoch.number, 0).permutation(size),
        )
        return int(order[index])

    def rows(self, indices: Indices, epoch: Epoch) -> list[Any]:
        size = self.ds.num_indices()
        places = [self.place(int(index), size, epoch) for index in indices]
        return self._by_index.rows(places, self.ds, epoch.at(0))

    def sequential(self, epoch: Epoch) -> FlowIterator:
        return _FromMemory(self, self._in_order, epoch)


class _IndexedMemory:
    """Datapoints by branch and index: a flow that is used twice is two streams."""

    def __init__(self) -> None:
        self._kept: dict[tuple[tuple[int, ...], int], Any] = {}

    def rows(self, indices: list[int], flow: DataFlow, epoch: Epoch) -> list[Any]:
        branch, kept = epoch.branch, self._kept
        missing = [index for index in dict.fromkeys(indices) if (branch, index) not in kept]
        if missing:
            # Not with the allocator of `epoch`, whose memory may be used again.
            rows = flow.read(missing, Epoch(epoch.number, branch))
            kept.update(zip([(branch, index) for index in missing], rows, strict=True))
        return [kept[branch, index] for index in indices]

    def __reduce__(self) -> tuple[type[_IndexedMemory], tuple[()]]:
        return _IndexedMemory, ()  # a copy fills its own: sending it would cost more


class _SequentialMemory:
    """The first datapoints of the input's epoch, read as far as needed; one list per branch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[tuple[int, ...], list[Any]] = {}
        self._inputs: dict[tuple[int, ...], FlowIterator] = {}
        self._complete: set[tuple[int, ...]] = set()

    def read(self, count: float, flow: DataFlow, epoch: Epoch) -> list[Any]:
        """Reads until there are `count` datapoints, or to the end; returns all of them."""
        branch = epoch.branch
        with self._lock:
            rows = self._rows.setdefault(branch, [])
            while len(rows) < count and branch not in self._complete:
                if branch not in self._inputs:
                    self._inputs[branch] = flow.open(Epoch(epoch.number, branch))
                try:
                    rows.append(next(self._inputs[branch]))
                except StopIteration:
                    self._complete.add(branch)
                    self._inputs.pop(branch).close()
                except Exception:
                    # An iterator that has raised may be broken: the next reader starts again.
                    self._inputs.pop(branch).close()
                    rows.clear()
                    raise
            return rows

    def __reduce__(self) -> tuple[type[_SequentialMemory], tuple[()]]:
        return _SequentialMemory, ()


class _FromMemory(FlowIterator):
    def __init__(self, flow: CacheData, memory: _SequentialMemory, epoch: Epoch):
        self._flow, self._memory, self._epoch = flow, memory, epoch
        self._index = 0
        self._closed = False

    def draw(self) -> Any:
        if self._closed:
            raise StopIteration
        wanted = math.inf if self._flow.shuffle else self._index + 1
        rows = self._memory.read(wanted, self._flow.ds, self._epoch.at(0))
        if self._index >= len(rows):
            raise StopIteration
        place = self._flow.place(self._index, len(rows), self._epoch)
        self._index += 1
        return rows[place]

    def state(self) -> State:
        return {"index": self._index}

    def restore(self, state: State) -> None:
        self._index, self._closed = state["index"], False

    def close(self) -> None:
        self._closed = True
