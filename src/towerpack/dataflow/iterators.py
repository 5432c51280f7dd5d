"""One running pass over a flow: a closable iterator whose position can be saved and restored."""

from __future__ import annotations

import inspect
from abc import ABC
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from towerpack.dataflow.statistics import NOBODY, Counter, measured_next

if TYPE_CHECKING:
    from towerpack.dataflow.base import DataFlow, Pass
    from towerpack.dataflow.stacking import Allocate

State = dict[str, Any]  # JSON: str keys, numbers, strings, lists

Accept = Callable[[Any], bool]
"""Takes a stack of datapoints, or refuses it."""


class FlowIterator(Iterator[Any], ABC):
    """One running pass: closable at any moment, with a position that can be saved and restored.

    `state()` is a small JSON value that follows what the consumer has received, not what was
    prefetched. `restore(state)` puts this iterator there: what follows equals, bit for bit, what
    would have followed. `close()` frees everything, at once, and may be called twice; the iterator
    then is at its end.
    """

    counter: Counter = NOBODY
    """Of the stage that this iterator belongs to: set by the stage's `iterator`."""

    stacks: bool = False
    """Whether `next_stack` may give something."""

    def __init_subclass__(cls, counted: bool = True, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if counted and "__next__" in cls.__dict__:
            cls.__next__ = measured_next(cls.__dict__["__next__"])  # type: ignore[assignment,method-assign]

    def __iter__(self) -> FlowIterator:
        return self

    def next_stack(self, count: int, allocate: Allocate, accept: Accept) -> int:
        """Some of the next datapoints at once, where that is cheaper; how many were taken.

        At most `count` of them are stacked along a new first axis, in arrays made by `allocate`,
        and shown to `accept`, which takes them or says no. 0 if it did, or if they come one by one
        here, or now: `next` then gives the next, or says why there is none.
        """
        return 0

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


class IndexIterator(FlowIterator):
    """Iterates a flow with random access; the state is the index of the next datapoint."""

    def __init__(self, flow: DataFlow, pass_: Pass):
        self._get, self._pass = flow.get, pass_
        self._index, self._size = 0, flow.span()

    def __next__(self) -> Any:
        while self._index < self._size:
            datapoint = self._get(self._index, self._pass)
            self._index += 1
            if datapoint is not None:
                return datapoint
        raise StopIteration

    def state(self) -> State:
        return {"index": self._index}

    def restore(self, state: State) -> None:
        self._index = checked_index(state["index"], self._size)

    def close(self) -> None:
        self._index = self._size


class EpochIterator(FlowIterator, counted=False):
    """What `iter(flow)` gives: the iterator of a pass, and the number of its epoch."""

    def __init__(self, flow: DataFlow, pass_: Pass):
        self._flow, self._pass = flow, pass_
        self._begin()

    def _begin(self) -> None:
        self._inner = self._flow.iterator(self._pass)
        # Bound once: this is called for every datapoint.
        self._next: Callable[[], Any] = self._inner.__next__
        self.stacks = self._inner.stacks

    @property
    def epoch(self) -> int:
        return self._pass.epoch

    def __next__(self) -> Any:
        return self._next()

    def next_stack(self, count: int, allocate: Allocate, accept: Accept) -> int:
        return self._inner.next_stack(count, allocate, accept)

    def state(self) -> State:
        return {"epoch": self.epoch, "at": self._inner.state()}

    def restore(self, state: State) -> None:
        if not isinstance(state, dict) or set(state) != {"epoch", "at"}:
            raise ValueError(f"expected a state with 'epoch' and 'at', received {state!r}")
        if state["epoch"] != self.epoch:
            self._inner.close()
            self._pass = self._pass.at_epoch(state["epoch"])
            self._begin()
        try:
            self._inner.restore(state["at"])
        except KeyError as error:
            raise ValueError(
                f"this state is not one of this pipeline ({self._flow.label()}): it has no "
                f"{error}; build the pipeline as it was when the state was taken"
            ) from error

    def close(self) -> None:
        self._inner.close()


class ReplayIterator(FlowIterator):
    """Iterates a flow whose `__iter__` is an ordinary generator; the state counts what came out.

    Such a generator reads its inputs by `iter(self.ds)` and, in an `RNGDataFlow`, its numbers from
    `self.rng`. Both belong to the flow object, which other iterators use as well, so they are put
    in place for the duration of each step, and put aside after it.
    """

    def __init__(self, flow: DataFlow, pass_: Pass):
        self._flow, self._pass = flow, pass_
        below = {id(x): x for x in (*flow.inputs(), getattr(flow, "ds", None)) if x is not None}
        self._inputs = list(below.values())
        self._open()

    def _open(self) -> None:
        self._count = 0
        self._next_passes = [self._pass] * len(self._inputs)
        self._rng = self._flow.pass_rng(self._pass)
        self._source: Iterator[Any] = self._step(lambda: iter(self._flow.generate()))

    def _step(self, action: Callable[[], Any]) -> Any:
        flow, outer = self._flow, self._flow._generating
        flow._generating = self._pass
        if self._rng is not None:
            flow.rng = self._rng  # type: ignore[attr-defined]
        for below, pass_ in zip(self._inputs, self._next_passes, strict=True):
            below._next_pass = pass_
        try:
            return action()
        finally:
            flow._generating = outer
            self._next_passes = [below._next_pass for below in self._inputs]

    def __next__(self) -> Any:
        datapoint = self._step(self._source.__next__)
        self._count += 1
        return datapoint

    def state(self) -> State:
        return {"count": self._count}

    def restore(self, state: State) -> None:
        self.close()
        self._open()
        for _ in range(state["count"]):
            try:
                self._step(self._source.__next__)
            except StopIteration:
                raise ValueError(
                    f"cannot go to datapoint {state['count']}: the flow ended after {self._count}; "
                    "was the state taken from another data set?"
                ) from None
            self._count += 1

    def close(self) -> None:
        close = getattr(self._source, "close", None)
        if close:
            close()
        self._source = iter(())


class OnePass:
    """A generator, or another iterator: what can be iterated only once."""

    def __init__(self, source: Iterator[Any]):
        self.source = source
        self.begun = False

    def begin(self) -> FlowIterator:
        kind, closed = type(self.source).__name__, False
        if inspect.isgenerator(self.source):
            closed = inspect.getgeneratorstate(self.source) == inspect.GEN_CLOSED
        if self.begun or closed:
            raise RuntimeError(
                f"this {kind} {'is exhausted' if closed else 'has been begun before'}: it can be "
                f"iterated only once. Pass the function that makes it, which every epoch calls "
                "again: DataFromGenerator(function)"
            )
        self.begun = True
        return _Consumed(self.source)


class _Consumed(FlowIterator):
    """Restores forwards only, by dropping what lies between."""

    def __init__(self, source: Iterator[Any]):
        self._source, self._count = source, 0

    def __next__(self) -> Any:
        datapoint = next(self._source)
        self._count += 1
        return datapoint

    def state(self) -> State:
        return {"count": self._count}

    def restore(self, state: State) -> None:
        if state["count"] < self._count:
            raise ValueError(
                f"cannot go back from datapoint {self._count} to {state['count']} of something "
                "that can be iterated only once; pass the function that makes it to "
                "DataFromGenerator"
            )
        while self._count < state["count"]:
            if next(self._source, self) is self:
                raise ValueError(
                    f"cannot go to datapoint {state['count']}: there were only {self._count}"
                )
            self._count += 1

    def close(self) -> None:
        close = getattr(self._source, "close", None)
        if close:
            close()
        self._source = iter(())


def checked_index(index: Any, size: int) -> int:
    """The index of a state, if a flow of `size` datapoints has that position (the end included)."""
    if not isinstance(index, int) or not 0 <= index <= size:
        raise ValueError(
            f"cannot go to datapoint {index}: the flow has {size}; was the state taken from "
            "another data set?"
        )
    return index
