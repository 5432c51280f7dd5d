"""What a flow is: an iterable of datapoints whose stream is a pure function of (seed, epoch).

Two kinds of flow, one protocol:

- A flow with **random access** says so (`random_access`) and implements `__len__` and `get`. It is
  iterated by index, so a position is one integer, restoring is instant, and workers need only be
  told indices.
- Any other flow implements `iterator`, or, as in old scripts, simply `__iter__` as a generator.

Nothing here holds a position or a generator of random numbers in the flow itself: those belong to
the iterator and to the `Pass` that it was made for.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import numpy as np

from towerpack.core.seeds import Stream
from towerpack.dataflow.stacking import Allocate, stack_rows

State = dict[str, Any]  # JSON: str keys, numbers, strings, lists


class DataFlowTerminated(BaseException):
    """A flow can never produce again (its other end is gone); not an ordinary end of a pass."""


@dataclass(frozen=True)
class Pass:
    """One pass over the data: which epoch, in which branch of the pipeline, and where arrays go.

    A stage with several inputs gives each its own `branch`, so that two shuffled sources joined
    into one flow are not shuffled alike. Stages with one input hand the pass on as it is: to wrap a
    flow in one more stage never changes the numbers drawn below it.
    """

    epoch: int = 0
    branch: tuple[int, ...] = ()
    allocate: Allocate = np.empty

    def input(self, which: int) -> Pass:
        return replace(self, branch=(*self.branch, which))

    def at_epoch(self, epoch: int) -> Pass:
        return replace(self, epoch=epoch)


class FlowIterator(Iterator[Any], ABC):
    """One running pass: closable at any moment, with a position that can be saved and restored.

    `state()` is a small JSON value that follows what the consumer has received, not what was
    prefetched. `restore(state)` puts this iterator there: what follows equals, bit for bit, what
    would have followed. `close()` frees everything, at once, and may be called twice; the iterator
    then is at its end.
    """

    def __iter__(self) -> FlowIterator:
        return self

    def state(self) -> State:
        raise NotImplementedError

    def restore(self, state: State) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> FlowIterator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class DataFlow(ABC):
    """An iterable of datapoints: lists, tuples, dicts or nested trees of arrays and scalars.

    Guarantees of every flow in this room:

    - `iter(flow)` gives a fresh, independent, closable `FlowIterator`; the first is epoch 0, the next
      epoch 1, and so on. `iterate(epoch)` asks for one epoch by number.
    - `len(flow)` is exact, or raises TypeError.
    - The stream is a pure function of (seed, epoch): the same for any number of workers.

    To write one, give it random access:

    >>> class Squares(DataFlow):
    ...     random_access = True
    ...     def __len__(self):
    ...         return 3
    ...     def get(self, index, pass_):
    ...         return [index, index * index]
    >>> list(Squares())
    [[0, 0], [1, 1], [2, 4]]
    >>> iterator = iter(Squares())
    >>> next(iterator), iterator.state()
    ([0, 0], {'epoch': 0, 'at': {'index': 1}})

    or, when there is none, write `__iter__` as a generator. Its iterator restores a state by
    drawing and dropping what came before, which is exact if the generator is deterministic.
    """

    random_access: bool = False
    """Whether `get` reaches any datapoint by its index."""

    height: int = 0
    """Distance from the sources: it tells apart the random streams of the stages of one pipeline."""

    _epochs_begun: int = 0

    def inputs(self) -> Sequence[DataFlow]:
        """The flows that this one reads from."""
        return ()

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} has no len(): its length is not known in advance")

    def __iter__(self) -> FlowIterator:
        epoch, self._epochs_begun = self._epochs_begun, self._epochs_begun + 1
        return self.iterate(epoch)

    def iterate(self, epoch: int = 0) -> FlowIterator:
        """The iterator of one epoch; its state carries the epoch too."""
        return EpochIterator(self, epoch)

    def iterator(self, pass_: Pass) -> FlowIterator:
        """The iterator of one pass: what stages call on their inputs, and what they implement."""
        if self.random_access:
            return IndexIterator(self, pass_)
        if type(self).__iter__ is not DataFlow.__iter__:
            return ReplayIterator(self, pass_)
        raise TypeError(
            f"{type(self).__name__} defines no datapoints; expected `__iter__` as a generator, or "
            "`random_access = True` with `__len__` and `get(index, pass_)`"
        )

    def get(self, index: int, pass_: Pass) -> Any:
        """The datapoint at `index` of that pass; None when the flow drops it."""
        raise TypeError(f"{type(self).__name__} has no random access")

    def get_rows(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> list[Any]:
        """The datapoints at several indices: override where many at once are cheaper."""
        return [self.get(int(index), pass_) for index in indices]

    def gather(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> Any:
        """Several datapoints as one batch: override where arrays can be indexed as a whole."""
        return stack_rows(self.get_rows(indices, pass_), pass_.allocate, indices)

    def __getitem__(self, index: int) -> Any:
        """The datapoint at `index` of epoch 0, so that a flow with random access is a Sequence."""
        if not self.random_access:
            raise TypeError(
                f"{type(self).__name__} has no random access; iterate over it, or build it on a "
                "source that has: DataFromArrays, DataFromList, LMDBData, ..."
            )
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of range for a flow of {size} datapoints")
        return self.get(int(index) % size, Pass())

    def reset_state(self) -> None:
        """Kept for old callers; never needed."""

    # The oldest scripts call these.
    def get_data(self) -> FlowIterator:
        return iter(self)

    def size(self) -> int:
        return len(self)


class ProxyDataFlow(DataFlow):
    """A flow that stands for another: base class of stages with one input, `self.ds`.

    On its own it passes everything on unchanged, random access and position included.
    """

    def __init__(self, ds: DataFlow | Iterable[Any]):
        self.ds = as_flow(ds)
        self.height = self.ds.height + 1

    def inputs(self) -> Sequence[DataFlow]:
        return (self.ds,)

    @property
    def random_access(self) -> bool:  # type: ignore[override]
        return self.ds.random_access

    def __len__(self) -> int:
        return len(self.ds)

    def iterator(self, pass_: Pass) -> FlowIterator:
        if type(self).__iter__ is not DataFlow.__iter__:
            return ReplayIterator(self, pass_)
        return self.ds.iterator(pass_)

    def get(self, index: int, pass_: Pass) -> Any:
        return self.ds.get(index, pass_)

    def get_rows(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> list[Any]:
        return self.ds.get_rows(indices, pass_)

    def gather(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> Any:
        return self.ds.gather(indices, pass_)

    def reset_state(self) -> None:
        self.ds.reset_state()


class RNGDataFlow(DataFlow):
    """Base class of flows written as a generator that draws from `self.rng`.

    `self.rng` is a `numpy.random.Generator` of (seed, epoch), renewed for every pass, so that the
    stream can be repeated. A stage with random access asks for a generator of each index instead
    (`RandomStage`).
    """

    seed: int = 0
    rng: np.random.Generator = np.random.Generator(np.random.Philox(0))

    def iterator(self, pass_: Pass) -> FlowIterator:
        self.rng = Stream(self.seed, *pass_.branch, self.height, "rng").fresh(pass_.epoch, 0)
        return super().iterator(pass_)


class RandomStage:
    """Mixin of flows that need randomness: one generator for each (seed, epoch, index)."""

    seed: int = 0
    height: int

    def stream(self, pass_: Pass, role: str) -> Stream:
        """The stream of this stage, cached: making its key costs more than jumping in it."""
        streams: dict[Any, Stream] = self.__dict__.setdefault("_streams", {})
        key = (self.seed, pass_.branch, role)
        if key not in streams:
            streams[key] = Stream(self.seed, *pass_.branch, self.height, role)
        return streams[key]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_streams"}


class IndexIterator(FlowIterator):
    """Iterates a flow with random access; the state is the index of the next datapoint."""

    def __init__(self, flow: DataFlow, pass_: Pass):
        self._flow, self._pass = flow, pass_
        self._index, self._size = 0, len(flow)

    def __next__(self) -> Any:
        while self._index < self._size:
            index, self._index = self._index, self._index + 1
            datapoint = self._flow.get(index, self._pass)
            if datapoint is not None:
                return datapoint
        raise StopIteration

    def state(self) -> State:
        return {"index": self._index}

    def restore(self, state: State) -> None:
        index = state["index"]
        if not 0 <= index <= self._size:
            raise ValueError(
                f"cannot go to datapoint {index}: the flow has {self._size}; was the state taken "
                "from another data set?"
            )
        self._index = index

    def close(self) -> None:
        self._index = self._size


class ReplayIterator(FlowIterator):
    """Iterates a flow whose `__iter__` is an ordinary generator; the state counts what came out."""

    def __init__(self, flow: DataFlow, pass_: Pass):
        self._flow, self._pass = flow, pass_
        self._count = 0
        self._source = self._open()

    def _open(self) -> Iterator[Any]:
        # An old-style stage iterates its inputs by `iter(self.ds)`: they are to begin this epoch.
        begin_at(self._flow, self._pass.epoch)
        return iter(type(self._flow).__iter__(self._flow))

    def __next__(self) -> Any:
        datapoint = next(self._source)
        self._count += 1
        return datapoint

    def state(self) -> State:
        return {"count": self._count}

    def restore(self, state: State) -> None:
        self.close()
        self._source, self._count = self._open(), 0
        for _ in range(state["count"]):
            if next(self._source, self) is self:
                raise ValueError(
                    f"cannot go to datapoint {state['count']}: the flow ended after {self._count}"
                )
            self._count += 1

    def close(self) -> None:
        close = getattr(self._source, "close", None)
        if close:
            close()
        self._source = iter(())


class EpochIterator(FlowIterator):
    """What `iter(flow)` gives: the iterator of a pass, and the number of its epoch."""

    def __init__(self, flow: DataFlow, epoch: int):
        self._flow, self.epoch = flow, epoch
        self._inner = flow.iterator(Pass(epoch))
        # Bound once: this is called for every datapoint.
        self._next: Callable[[], Any] = self._inner.__next__

    def __next__(self) -> Any:
        return self._next()

    def state(self) -> State:
        return {"epoch": self.epoch, "at": self._inner.state()}

    def restore(self, state: State) -> None:
        if not isinstance(state, dict) or set(state) != {"epoch", "at"}:
            raise ValueError(f"expected a state with 'epoch' and 'at', received {state!r}")
        if state["epoch"] != self.epoch:
            self._inner.close()
            self.epoch = state["epoch"]
            self._inner = self._flow.iterator(Pass(self.epoch))
            self._next = self._inner.__next__
        self._inner.restore(state["at"])

    def close(self) -> None:
        self._inner.close()


class Source(DataFlow):
    """Any iterable as a flow: a list, a torch-style map dataset, a generator function's result.

    With `__len__` and `__getitem__` it has random access; otherwise each pass calls `iter` on it.
    """

    def __init__(self, data: Any):
        self.data = data
        self.random_access = hasattr(data, "__getitem__") and hasattr(data, "__len__")

    def __len__(self) -> int:
        return len(self.data)

    def get(self, index: int, pass_: Pass) -> Any:
        return self.data[index]

    def iterator(self, pass_: Pass) -> FlowIterator:
        return IndexIterator(self, pass_) if self.random_access else ReplayIterator(self, pass_)

    def __iter__(self) -> Any:
        return DataFlow.__iter__(self) if self.random_access else iter(self.data)


def as_flow(data: Any) -> DataFlow:
    """The flow itself, or any other iterable or sequence made one."""
    if isinstance(data, DataFlow):
        return data
    if hasattr(data, "__iter__") or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return Source(data)
    raise TypeError(
        f"expected a DataFlow, a sequence or an iterable, received {data!r} ({type(data).__name__})"
    )


def begin_at(flow: DataFlow, epoch: int) -> None:
    """Lets the next plain `iter()` on the flow and on its inputs begin this epoch."""
    flow._epochs_begun = epoch
    for below in flow.inputs() or filter(None, [getattr(flow, "ds", None)]):
        if isinstance(below, DataFlow):
            begin_at(below, epoch)
