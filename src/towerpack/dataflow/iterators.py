"""Iterators over one epoch of a flow: they can be closed, and their position saved and restored."""

from __future__ import annotations

import threading
from abc import ABC
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.statistics import UNASSIGNED, Counter, clock

if TYPE_CHECKING:
    from towerpack.dataflow.base import DataFlow

State = dict[str, Any]  # JSON: str keys, numbers, strings, lists


class FlowIterator(Iterator[Any], ABC):
    """Iterates over one epoch of a flow.

    `state()` is a small JSON value that describes what the consumer has received, not what was
    prefetched. After `restore(state)` the iterator continues, bit for bit, as it would have
    continued then. `close()` frees all resources at once and may be called twice; the iterator is
    then at its end.

    A subclass implements `draw`, which `__next__` calls and measures.
    """

    counter: Counter = UNASSIGNED
    """The counter of the flow that opened this iterator; `DataFlow.open` sets it."""

    def __iter__(self) -> FlowIterator:
        return self

    def __next__(self) -> Any:
        begun = clock()
        datapoint = self.draw()
        counter = self.counter
        counter.nanoseconds += clock() - begun
        counter.datapoints += 1
        return datapoint

    def draw(self) -> Any:
        """The next datapoint; raises StopIteration at the end."""
        raise NotImplementedError

    def next_stack(self, count: int) -> tuple[Any, int] | None:
        """The next n <= `count` datapoints stacked along a new first axis, and n.

        Returns None where one call cannot make them all. This includes the end, and datapoints that
        raise an error: `next` then returns or raises what comes next.
        """
        return None

    def next_batch(self, size: int, number: int) -> tuple[Any, int] | None:
        """The next `size` datapoints, fewer at the end, stacked by workers, and their number.

        Returns None if no workers make them. An error, which counts the datapoints from `number`,
        leaves the position before them. The workers continue with batches of this size.
        """
        return None

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


class EpochIterator(FlowIterator):
    """The iterator that users get: its state includes the number of the epoch."""

    def __init__(self, flow: DataFlow, epoch: Epoch):
        self._flow, self._epoch = flow, epoch
        self._open()

    def _open(self) -> None:
        self._inner = self._flow.open(self._epoch)
        # Bound once, because these are called for every datapoint.
        self._next: Callable[[], Any] = self._inner.__next__
        self.next_stack = self._inner.next_stack  # type: ignore[method-assign]

    @property
    def epoch(self) -> int:
        return self._epoch.number

    def __next__(self) -> Any:
        return self._next()

    def state(self) -> State:
        return {"epoch": self.epoch, "at": self._inner.state()}

    def restore(self, state: State) -> None:
        if not isinstance(state, dict) or set(state) != {"epoch", "at"}:
            raise ValueError(f"expected a state with 'epoch' and 'at', received {state!r}")
        if state["epoch"] != self.epoch:
            self._inner.close()
            self._epoch = self._epoch.at(state["epoch"])
            self._open()
        try:
            self._inner.restore(state["at"])
        except KeyError as error:
            raise ValueError(
                f"this state does not fit this pipeline ({self._flow.label()}): it has no {error}; "
                "build the pipeline as it was when the state was saved"
            ) from error

    def close(self) -> None:
        self._inner.close()


class IndexIterator(FlowIterator):
    """Iterates over a flow with random access; the state is the index of the next datapoint."""

    def __init__(self, flow: DataFlow, epoch: Epoch):
        self._rows, self._epoch = flow.rows, epoch
        self._index, self._size = 0, flow.num_indices()

    def __next__(self) -> Any:  # not `draw`: each call is a good part of the cost of a datapoint
        begun = clock()
        while self._index < self._size:
            datapoint = self._rows([self._index], self._epoch)[0]
            self._index += 1
            if datapoint is not None:
                counter = self.counter
                counter.nanoseconds += clock() - begun
                counter.datapoints += 1
                return datapoint
        raise StopIteration

    def state(self) -> State:
        return {"index": self._index}

    def restore(self, state: State) -> None:
        self._index = checked_index(state["index"], self._size)

    def close(self) -> None:
        self._index = self._size


class InputIterator(FlowIterator):
    """Base of iterators over one input: the state is the input's state and a count.

    `key` is the name of the count in the state; None leaves it out.
    """

    def __init__(self, source: FlowIterator, key: str | None):
        self.input, self.key, self.count = source, key, 0

    def state(self) -> State:
        if self.key is None:
            return self.input.state()
        return {"input": self.input.state(), self.key: self.count}

    def restore(self, state: State) -> None:
        if self.key is None:
            self.input.restore(state)
        else:
            self.input.restore(state["input"])
            self.count = state[self.key]

    def close(self) -> None:
        self.input.close()


class InputsIterator(FlowIterator):
    """Base of iterators over several inputs: the state is the inputs' states and a count."""

    counts = True  # whether the state includes the count

    def __init__(self, flows: Sequence[DataFlow], epoch: Epoch):
        self.inputs = [flow.open(epoch.input(which)) for which, flow in enumerate(flows)]
        self.count = 0

    def state(self) -> State:
        states = [source.state() for source in self.inputs]
        return {"count": self.count, "inputs": states} if self.counts else {"inputs": states}

    def restore(self, state: State) -> None:
        for source, saved in zip(self.inputs, state["inputs"], strict=True):
            source.restore(saved)
        self.count = state.get("count", 0)

    def close(self) -> None:
        for source in self.inputs:
            source.close()


class _Running(threading.local):
    """The `ReplayIterator` whose generator runs in this thread at this moment."""

    replay: ReplayIterator | None = None


running = _Running()


class CountIterator(FlowIterator):
    """Base of iterators that only go forwards: the state is the number of datapoints so far.

    A state is restored by dropping the datapoints before it.
    """

    def __init__(self) -> None:
        self._count = 0

    def state(self) -> State:
        return {"count": self._count}

    def restore(self, state: State) -> None:
        if state["count"] < self._count:
            raise ValueError(
                f"cannot go back from datapoint {self._count} to {state['count']} of something "
                "that can be iterated only once"
            )
        while self._count < state["count"]:
            try:
                self.draw()
            except StopIteration:
                raise ValueError(
                    f"cannot go to datapoint {state['count']}: the flow ended after {self._count}; "
                    "was the state taken from another data set?"
                ) from None


class OnceIterator(CountIterator):
    """Iterates over a generator, or another iterator, that cannot be begun again."""

    def __init__(self, source: Iterator[Any]):
        super().__init__()
        self._source = source

    def draw(self) -> Any:
        datapoint = next(self._source)
        self._count += 1
        return datapoint

    def close(self) -> None:
        if hasattr(self._source, "close"):
            self._source.close()
        self._source = iter(())


class ReplayIterator(OnceIterator):
    """Iterates over a generator, which it runs from the beginning to restore a state.

    While it runs, `iter(flow)` of any other flow begins the epoch that is replayed, and
    `RNGDataFlow.rng` belongs to that epoch.
    """

    def __init__(self, epoch: Epoch, begin: Callable[[], Iterator[Any]]):
        self._epoch, self._begin = epoch, begin
        self._open()

    def _open(self) -> None:
        self._count = 0
        self._begun: dict[int, int] = {}  # how often each input was begun, by the flow's id
        self._generators: dict[int, Any] = {}  # of random numbers, by the flow's id
        self._source: Iterator[Any] = self._run(self._begin)

    def _run(self, action: Callable[[], Any]) -> Any:
        outer, running.replay = running.replay, self
        try:
            return action()
        finally:
            running.replay = outer

    def next_epoch(self, flow: DataFlow) -> Epoch:
        """The epoch in which the generator begins `flow`: a second time, it is the next one."""
        times = self._begun[id(flow)] = self._begun.get(id(flow), -1) + 1
        return self._epoch.at(self._epoch.number + times)

    def generator(self, flow: Any) -> Any:
        """The random generator of an `RNGDataFlow` for the epoch that is replayed."""
        if id(flow) not in self._generators:
            self._generators[id(flow)] = flow.generator(self._epoch)
        return self._generators[id(flow)]

    def draw(self) -> Any:
        outer, running.replay = running.replay, self
        try:
            datapoint = next(self._source)
        finally:
            running.replay = outer
        self._count += 1
        return datapoint

    def restore(self, state: State) -> None:
        self.close()
        self._open()
        super().restore(state)


def checked_index(index: Any, size: int) -> int:
    """The index of a state, if a flow of `size` datapoints has that position or ends there."""
    if not isinstance(index, int) or not 0 <= index <= size:
        raise ValueError(
            f"cannot go to datapoint {index}: the flow has {size}; was the state taken from "
            "another data set?"
        )
    return index
