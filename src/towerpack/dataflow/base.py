"""The data protocol: a flow is an iterable of datapoints, a pure function of (seed, epoch).

**What an author writes.** A flow whose datapoints can be read by index defines `__len__` and
`rows(indices, epoch)`, which returns a list, and optionally `gather(indices, epoch)`, which returns
the same datapoints as one batch. Any other flow defines `__iter__` as a generator. A stage over one
input derives from `Stage` and defines only `apply`.

**What a reader calls.** `read`, `read_batch` and `open` call these methods and count datapoints and
time. Users call `iter(flow)`, `flow.iterate(epoch)`, `flow[i]` and `len(flow)`. No flow stores a
position or a random generator: they belong to the iterator and to its `Epoch`.

**Dropped datapoints.** `rows` returns None for an index that the flow drops, and iterators skip it.
There are `num_indices()` indices; `len()` is the number of datapoints, where it is known. A stage
that counts datapoints (`counts_datapoints`: batching, taking, joining) must not meet a None: it
iterates over its input unless that surely drops nothing, and by index it raises `DroppedDatapoint`.
Other stages use the index of a datapoint also while iterating, so its random numbers are the same
in a worker and without workers.
"""

from __future__ import annotations

import operator
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from towerpack.core.seeds import Stream
from towerpack.dataflow.epoch import Allocate, Epoch
from towerpack.dataflow.iterators import (
    EpochIterator,
    FlowIterator,
    IndexIterator,
    ReplayIterator,
    running,
)
from towerpack.dataflow.stacking import DroppedDatapoint
from towerpack.dataflow.stacking_parts import stack_in_parts
from towerpack.dataflow.statistics import UNASSIGNED, Counter, clock

Indices = Sequence[int] | np.ndarray


class DataFlowTerminated(BaseException):
    """A flow can never produce again, since its other end is gone; not the end of an epoch."""


@dataclass(frozen=True)
class Batching:
    """The number of rows in each batch of a flow, as its last batching stage declares it."""

    size: int
    exact: bool  # every batch surely has `size` rows, in each component


class DataFlow(ABC):
    """An iterable of datapoints: lists, tuples, dicts or nested trees of arrays and scalars.

    Every flow of towerpack guarantees:

    - `iter(flow)` gives a new, independent, closable `FlowIterator`. The first one is epoch 0, the
      next one epoch 1, and so on. `iterate(epoch)` gives that of one epoch by its number.
    - `len(flow)` is exact, or raises TypeError.
    - The stream is a pure function of (seed, epoch), for any number of workers. The exception are
      runners over a flow without random access, see `MultiProcessRunner`.

    A flow whose datapoints can be read by index defines `__len__` and `rows`:

    >>> class Squares(DataFlow):
    ...     def __len__(self):
    ...         return 3
    ...     def rows(self, indices, epoch):
    ...         return [[int(i), int(i) ** 2] for i in indices]
    >>> list(Squares())
    [[0, 0], [1, 1], [2, 4]]
    >>> iterator = iter(Squares())
    >>> next(iterator), iterator.state()
    ([0, 0], {'epoch': 0, 'at': {'index': 1}})

    Any other flow defines `__iter__` as a generator. `iter(flow)` is then that generator, as always
    in Python. `iterate(epoch)` gives an iterator with a state, which it restores by running the
    generator from the beginning. This is exact if the generator is deterministic.

    >>> class Countdown(DataFlow):
    ...     def __iter__(self):
    ...         yield from ([i] for i in (3, 2, 1))
    >>> iterator = Countdown().iterate()
    >>> iterator.restore({'epoch': 0, 'at': {'count': 2}})
    >>> list(iterator)
    [[1]]
    """

    # Facts that other flows and rooms rely on.

    reorders: bool = False
    """Whether an index means another datapoint in another epoch."""

    counts_datapoints: bool = False
    """Whether the flow depends on how many datapoints its inputs have, dropped ones excluded."""

    keeps_rows: bool = False
    """Whether datapoints keep the number of their rows, so that batches from below keep theirs.

    A class states this beside the methods that make its datapoints: see `states`.
    """

    transparent: bool = False
    """Whether the random numbers of the stages above are the same without this stage."""

    external: bool = False
    """Whether the datapoints come from other programs."""

    @property
    def drops(self) -> bool | None:
        """Whether some indices have no datapoint: never (False), by design (True), perhaps (None).

        None stands for a function that may return None.
        """
        if self.counts_datapoints:
            return False
        answers = {flow.drops for flow in self.inputs()}
        return True if True in answers else None if None in answers else False

    @property
    def random_access(self) -> bool:
        """Whether any datapoint can be read by its index: derived from what the class defines."""
        return not writes_iter(type(self)) and self.indexable()

    def indexable(self) -> bool:
        """Whether `rows` can be used: it is defined, and all inputs have random access."""
        return type(self).rows is not DataFlow.rows and all(
            flow.random_access and not (self.counts_datapoints and flow.drops)
            for flow in self.inputs()
        )

    def batching(self) -> Batching | None:
        """How many rows each batch has; None if no stage makes batches.

        After a stage that may change datapoints, such as a function, this is not `exact`.
        """
        for flow in self.inputs():
            found = flow.batching()
            if found is not None:
                exact = found.exact and self.keeps_rows and states(type(self), "keeps_rows")
                return replace(found, exact=exact)
        return None

    @cached_property
    def height(self) -> int:
        """The number of stages below, which tells apart the random streams of a pipeline."""
        highest = max((flow.height for flow in self.inputs()), default=-1)
        return max(0, highest) if self.transparent else highest + 1

    @cached_property
    def statistics(self) -> Counter:
        """What this stage has delivered and cost so far; see `towerpack.dataflow.statistics`."""
        return Counter()

    def inputs(self) -> Sequence[DataFlow]:
        """The flows that this one reads from."""
        return ()

    def label(self) -> str:
        """The name of this stage in messages and tables: its class, and its function if any."""
        return type(self).__name__

    def interrupt(self) -> None:
        """Ends a wait for data from outside: called in another thread when the consumer stops."""

    # Methods that authors override.

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} has no len(): its length is not known in advance")

    def num_indices(self) -> int:
        """The number of indices: `len()`, and those whose datapoints are dropped."""
        return len(self)

    def rows(self, indices: Indices, epoch: Epoch) -> list[Any]:
        """The datapoints at these indices; None for those that the flow drops."""
        raise TypeError(f"{type(self).__name__} has no random access")

    def gather(self, indices: Indices, epoch: Epoch) -> Any:
        """The same datapoints as one batch: override it where arrays can be indexed as a whole."""
        return stack_in_parts(lambda part: self.rows(part, epoch), indices, epoch.allocate)

    def iterator(self, epoch: Epoch) -> FlowIterator:
        """The iterator that `open` returns, unless the author wrote `__iter__`."""
        if self.indexable() and _is_walked(self):
            return IndexIterator(self, epoch)
        return self.sequential(epoch)

    def sequential(self, epoch: Epoch) -> FlowIterator:
        """The iterator of a flow that has no random access, or does not use it."""
        raise TypeError(
            f"{type(self).__name__} defines no datapoints; expected `__iter__` as a generator, or "
            "`__len__` and `rows(indices, epoch)`"
        )

    # Methods that readers call.

    def read(self, indices: Indices, epoch: Epoch) -> list[Any]:
        """The datapoints at these indices; None for those that the flow drops."""
        if len(indices) == 1:  # measuring would cost more than many a datapoint
            return self.rows(indices, epoch)
        begun = clock()
        rows = self.rows(indices, epoch)
        self.statistics.add(len(indices), begun)
        return rows

    def read_batch(self, indices: Indices, epoch: Epoch) -> Any:
        """The datapoints at these indices as one batch; none of them may be dropped."""
        begun = clock()
        batch = self.gather(indices, epoch)
        self.statistics.add(len(indices), begun)
        return batch

    def open(self, epoch: Epoch) -> FlowIterator:
        """An iterator over one epoch: what stages and workers use."""
        iterator: FlowIterator
        if writes_iter(type(self)):
            iterator = ReplayIterator(epoch, lambda: iter(self))
        else:
            iterator = self.iterator(epoch)
        if iterator.counter is UNASSIGNED:
            iterator.counter = self.statistics
        return iterator

    def iterate(self, epoch: int = 0, allocate: Allocate = np.empty) -> EpochIterator:
        """An iterator over one epoch, whose state includes the epoch.

        Batches are written into arrays that `allocate` makes.
        """
        return EpochIterator(self, Epoch(epoch, allocate=allocate))

    _epochs_begun = 0

    def __iter__(self) -> FlowIterator:
        replay = running.replay
        if replay is not None:
            epoch = replay.next_epoch(self)
        else:
            epoch = Epoch(self._epochs_begun)
            self._epochs_begun += 1
        if writes_iter(type(self)):  # then this is `super().__iter__()` in the author's generator
            return self.iterator(epoch)
        return self.open(epoch) if replay is not None else EpochIterator(self, epoch)

    def __getitem__(self, index: Any) -> Any:
        """The datapoint at `index` of epoch 0, so that a flow with random access is a Sequence."""
        if not self.random_access:
            raise TypeError(
                f"{type(self).__name__} has no random access; iterate over it, or build it on a "
                "source that has: DataFromArrays, DataFromList, LMDBData, ..."
            )
        if isinstance(index, slice):
            raise TypeError(f"expected an index, received {index}; FlowSequence(flow) takes slices")
        index, size = operator.index(index), self.num_indices()
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of range for a flow of {size} datapoints")
        datapoint = self.read([index % size], Epoch())[0]
        if datapoint is None:
            raise DroppedDatapoint(index)
        return datapoint

    def __bool__(self) -> bool:
        return True  # without this, `if flow:` would ask for a length that may not exist


def writes_iter(cls: type[DataFlow]) -> bool:
    """Whether the author of a class wrote `__iter__`, and no `rows` in a class derived from it."""
    for base in cls.__mro__:
        if base is DataFlow:
            return False
        if "__iter__" in base.__dict__:
            return True
        if "rows" in base.__dict__ or "iterator" in base.__dict__:
            return False
    return False


MAKING = frozenset(
    ["__iter__", "rows", "gather", "apply", "iterator", "sequential", "parts", "order", "assemble"]
)


def states(cls: type[DataFlow], fact: str) -> bool:
    """Whether a class states a fact about its datapoints.

    It does not if a class derived from the one with the fact overrides how datapoints are made.
    """
    for base in cls.__mro__:
        if fact in base.__dict__:
            return True
        if not MAKING.isdisjoint(base.__dict__):
            return False
    return False


def iterates_by_index(flow: DataFlow) -> bool:
    """Whether iterating over a flow with random access reads one index after another.

    It does not if a stage counts datapoints below which some may be dropped: how many indices that
    stage has is only known by iterating.
    """
    return flow.random_access and _is_walked(flow)


def _is_walked(flow: DataFlow) -> bool:
    below = flow.inputs()
    exact = not flow.counts_datapoints or all(x.drops is False for x in below)
    return exact and all(map(iterates_by_index, below))


class RNGDataFlow(DataFlow):
    """Base class of flows written as a generator that draws from `self.rng`.

    `self.rng` is a `numpy.random.RandomState` of (seed, epoch), so the stream of an epoch can be
    repeated. Outside of `iterate` and of other flows, that of epoch 0 is used. A flow with random
    access uses a generator for each index instead (`RandomStage`).

    >>> class Coin(RNGDataFlow):
    ...     def __iter__(self):
    ...         for _ in range(3):
    ...             yield [self.rng.randint(2)]
    >>> list(Coin().iterate(epoch=5)) == list(Coin().iterate(epoch=5))
    True
    """

    seed: int = 0

    def generator(self, epoch: Epoch) -> np.random.RandomState:
        """A new generator for an epoch."""
        stream = Stream(self.seed, *epoch.branch, self.height, "rng")
        # RandomState, not Generator: such flows call `rng.randint` and `rng.rand`.
        return np.random.RandomState(stream.fresh(epoch.number, 0).bit_generator)

    @property
    def rng(self) -> Any:
        if running.replay is not None:
            return running.replay.generator(self)
        if self._rng is None:
            self._rng = self.generator(Epoch())
        return self._rng

    @rng.setter
    def rng(self, rng: Any) -> None:
        self._rng = rng

    _rng: Any = None
