"""A flow kept in memory after it has been read once."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from towerpack.dataflow.base import (
    DataFlow,
    FlowIterator,
    IndexIterator,
    Pass,
    RandomStage,
    Stage,
    State,
)
from towerpack.dataflow.epoch_cache import EpochCache


class CacheData(RandomStage, Stage):
    """Reads each datapoint of the input once, and gives it out from memory ever after.

    What is kept is the input's epoch 0, so random augmentation belongs after this stage. With
    `shuffle=True` the order is another one each epoch. Ordered otherwise, each once; random access
    is kept, and then datapoints are read when they are asked for. A sequential input is read as far
    as it is asked for, by whichever iterator comes first, and with `shuffle` to its end at once.

    The datapoints themselves are given out, not copies: do not write into them. Every worker
    process has a cache of its own: put this stage above the workers, not below.

    >>> flow = CacheData(range(3))
    >>> list(flow), list(flow)
    ([0, 1, 2], [0, 1, 2])
    """

    def __init__(self, ds: DataFlow | Iterable[Any], shuffle: bool = False, *, seed: int = 0):
        super().__init__(ds)
        self.shuffle, self.seed = shuffle, seed
        self._by_index = _IndexedMemory()
        self._in_order = _SequentialMemory()
        self._orders: EpochCache[Any] = EpochCache()

    @property
    def reorders(self) -> bool:  # type: ignore[override]
        return self.shuffle

    def place(self, index: int, size: int, pass_: Pass) -> int:
        """Where in the memory the datapoint of an index is."""
        if not self.shuffle:
            return index
        order = self._orders.get(
            (pass_.epoch, pass_.branch, size, self.seed),
            lambda: self.stream(pass_, "order").generator(pass_.epoch, 0).permutation(size),
        )
        return int(order[index])

    def get(self, index: int, pass_: Pass) -> Any:
        place = self.place(index, self.ds.span(), pass_)
        return self._by_index.get(place, self.ds, pass_.at_epoch(0))

    def memory(self, pass_: Pass) -> tuple[_SequentialMemory, Pass]:
        return self._in_order, pass_.at_epoch(0)

    def iterator(self, pass_: Pass) -> FlowIterator:
        return IndexIterator(self, pass_) if self.walks_indices else _FromMemory(self, pass_)


class _IndexedMemory:
    """Datapoints by index, and by branch: a flow that is used twice is two streams."""

    def __init__(self) -> None:
        self._kept: dict[tuple[tuple[int, ...], int], Any] = {}

    def get(self, index: int, flow: DataFlow, pass_: Pass) -> Any:
        key = (pass_.branch, index)
        try:
            return self._kept[key]
        except KeyError:
            datapoint = self._kept[key] = flow.get(index, Pass(pass_.epoch, pass_.branch))
            return datapoint

    def __reduce__(self) -> tuple[type[_IndexedMemory], tuple[()]]:
        return _IndexedMemory, ()  # another process fills its own: sending it would cost more


class _SequentialMemory:
    """A prefix of the input's pass, grown by whoever comes to its end; one for each branch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[tuple[int, ...], list[Any]] = {}
        self._inputs: dict[tuple[int, ...], FlowIterator] = {}
        self._complete: set[tuple[int, ...]] = set()

    def has(self, count: int, flow: DataFlow, pass_: Pass) -> bool:
        """Reads on until there are `count` datapoints; False if the input ends before that."""
        branch = pass_.branch
        with self._lock:
            rows = self._rows.setdefault(branch, [])
            while len(rows) < count and branch not in self._complete:
                if branch not in self._inputs:
                    self._inputs[branch] = flow.iterator(Pass(pass_.epoch, branch))
                try:
                    rows.append(next(self._inputs[branch]))
                except StopIteration:
                    self._complete.add(branch)
                    self._inputs.pop(branch).close()
                except Exception:
                    # An iterator that has raised may be broken: the next reader begins anew.
                    self._inputs.pop(branch).close()
                    rows.clear()
                    raise
            return len(rows) >= count

    def read_all(self, flow: DataFlow, pass_: Pass) -> int:
        """Reads to the end and gives the number of datapoints."""
        while self.has(len(self._rows.get(pass_.branch, ())) + 1, flow, pass_):
            pass
        return len(self._rows[pass_.branch])

    def __getitem__(self, key: tuple[tuple[int, ...], int]) -> Any:
        branch, place = key
        return self._rows[branch][place]

    def __reduce__(self) -> tuple[type[_SequentialMemory], tuple[()]]:
        return _SequentialMemory, ()


class _FromMemory(FlowIterator):
    def __init__(self, flow: CacheData, pass_: Pass):
        self._flow, self._pass = flow, pass_
        self._memory, self._stored = flow.memory(pass_)
        self._index = 0
        self._closed = False

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        if self._flow.shuffle:
            size = self._memory.read_all(self._flow.ds, self._stored)
            if self._index >= size:
                raise StopIteration
            place = self._flow.place(self._index, size, self._pass)
        else:
            if not self._memory.has(self._index + 1, self._flow.ds, self._stored):
                raise StopIteration
            place = self._index
        self._index += 1
        return self._memory[self._stored.branch, place]

    def state(self) -> State:
        return {"index": self._index}

    def restore(self, state: State) -> None:
        self._index, self._closed = state["index"], False

    def close(self) -> None:
        self._closed = True
