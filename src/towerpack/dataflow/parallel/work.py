"""What workers do: tasks in, datapoints out. The same code in a process, a thread, or right here.

A *work* object is sent to every worker once. A task then says which datapoints it is to make; every
task can be done again, in another worker, with the same result: that is what makes a worker's death
harmless.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from towerpack.dataflow.base import (
    DataFlow,
    DataFlowTerminated,
    DroppedDatapoint,
    FlowIterator,
    Pass,
    Source,
    State,
)
from towerpack.dataflow.map import MapData
from towerpack.dataflow.stacking import Allocate, stack_rows

RAISE, SKIP = "raise", "skip"


@dataclass(slots=True)
class Request:
    """What a worker is asked for: `count` datapoints of an epoch, from index `start` on."""

    epoch: int
    start: int
    count: int
    inputs: list[Any] | None = None  # for work that maps datapoints which the parent has read
    stack: bool = False  # whether they are wanted as one batch, if that is possible


@dataclass(slots=True)
class Result:
    """What came of it."""

    rows: list[Any]  # the datapoints, None for those that were dropped; or one batch of them all
    stacked: bool = False  # which of the two it is
    error: BaseException | None = None  # what happened after the last of them
    skipped: list[str] = field(default_factory=list)  # errors that were passed over, in words
    before: State | None = None  # of a stream: its position before these datapoints
    ended: bool = False  # of a stream: there are no more


class Work(Protocol):
    """One kind of work. `begin` says where the next datapoint is about to be made."""

    def statistics_of(self) -> DataFlow:
        """The flow whose statistics are worth telling."""
        ...

    def run(self, request: Request, allocate: Allocate) -> Result:
        """Makes the datapoints, all at once where that is quicker."""
        ...

    def run_carefully(
        self, request: Request, allocate: Allocate, begin: Callable[[int], None]
    ) -> Result:
        """The same one by one, so that each is known by its index when it goes wrong."""
        ...


class ByIndex:
    """Work that can make each datapoint for itself; errors are pinned to the one they belong to."""

    branch: tuple[int, ...]
    on_error: str

    def many(self, request: Request, pass_: Pass) -> list[Any]:
        raise NotImplementedError

    def one(self, request: Request, offset: int, pass_: Pass) -> Any:
        raise NotImplementedError

    def batch(self, request: Request, pass_: Pass) -> Any:
        rows = self.many(request, pass_)
        if any(row is None for row in rows):
            raise DroppedDatapoint(request.start, "a batch")
        return stack_rows(rows, pass_.allocate)

    def run(self, request: Request, allocate: Allocate) -> Result:
        pass_ = Pass(request.epoch, self.branch, allocate)
        # Errors come again below, where it is known which datapoint they belong to.
        if request.stack:
            with contextlib.suppress(Exception):
                return Result([self.batch(request, pass_)], stacked=True)
        elif request.count > 1:
            with contextlib.suppress(Exception):
                return Result(self.many(request, pass_))
        return self.run_carefully(request, allocate, lambda index: None)

    def run_carefully(
        self, request: Request, allocate: Allocate, begin: Callable[[int], None]
    ) -> Result:
        pass_ = Pass(request.epoch, self.branch, allocate)
        result = Result([])
        for offset in range(request.count):
            begin(request.start + offset)
            try:
                result.rows.append(self.one(request, offset, pass_))
            except Exception as error:  # noqa: BLE001 (the consumer gets it)
                if self.on_error == RAISE:
                    result.error = error
                    break
                result.rows.append(None)
                result.skipped.append(f"{type(error).__name__}: {error}")
        return result


class FlowWork(ByIndex):
    """Datapoints of a flow with random access, by index."""

    def __init__(self, flow: DataFlow, branch: tuple[int, ...], on_error: str):
        self.flow, self.branch, self.on_error = flow, branch, on_error

    def statistics_of(self) -> DataFlow:
        return self.flow

    def many(self, request: Request, pass_: Pass) -> list[Any]:
        return self.flow.get_rows(range(request.start, request.start + request.count), pass_)

    def one(self, request: Request, offset: int, pass_: Pass) -> Any:
        return self.flow.get_rows([request.start + offset], pass_)[0]

    def batch(self, request: Request, pass_: Pass) -> Any:
        return self.flow.gather(np.arange(request.start, request.start + request.count), pass_)


class MapWork(ByIndex):
    """A function over datapoints that the parent has read."""

    def __init__(self, flow: MapData, branch: tuple[int, ...], on_error: str):
        self.flow, self.branch, self.on_error = copy.copy(flow), branch, on_error
        # Its input stays with the parent and may not even be able to travel.
        self.flow.ds = Source(())

    def statistics_of(self) -> DataFlow:
        return self.flow

    def many(self, request: Request, pass_: Pass) -> list[Any]:
        return [self.one(request, offset, pass_) for offset in range(request.count)]

    def one(self, request: Request, offset: int, pass_: Pass) -> Any:
        datapoint = (request.inputs or ())[offset]
        if datapoint is None:  # the input dropped it
            return None
        return self.flow.apply(datapoint, request.start + offset, pass_)


class MapBatchWork(MapWork):
    """The same, and `batch_size` results stacked into one: a task's inputs make one batch."""

    def __init__(self, flow: MapData, branch: tuple[int, ...], on_error: str, batch_size: int):
        super().__init__(flow, branch, on_error)
        self.batch_size = batch_size

    def one(self, request: Request, offset: int, pass_: Pass) -> Any:
        first = request.start * self.batch_size
        indices = range(first, first + len(request.inputs or ()))
        rows = []
        for index, datapoint in zip(indices, request.inputs or (), strict=True):
            rows.append(self.flow.apply(datapoint, index, pass_))
            if rows[-1] is None:
                raise DroppedDatapoint(index, "a batch")
        return stack_rows(rows, pass_.allocate, indices)


class StreamWork:
    """A flow without random access: one iterator, run from where it stands.

    Tasks of a stream belong to one worker, in order. A worker that takes the place of a dead one is
    put to the position before the first task that is not done.
    """

    def __init__(self, flow: DataFlow, branch: tuple[int, ...], on_error: str, copies: int = 1):
        self.flow, self.branch, self.on_error, self.copies = flow, branch, on_error, copies
        self._iterator: FlowIterator | None = None
        self._allocate: Allocate = np.empty  # of the task under way

    def statistics_of(self) -> DataFlow:
        return self.flow

    def be_copy(self, number: int) -> None:
        """Which of several copies this is: each draws other random numbers."""
        if self.copies > 1:
            self.branch = (*self.branch, number)

    def restore(self, epoch: int, state: str) -> None:
        """Goes to a position: that of `input`, then `skip` datapoints on."""
        position = json.loads(state)
        self.close()
        self._iterator = self._open(epoch)
        if position["input"] is not None:
            self._iterator.restore(position["input"])
        again = self.run_carefully(
            Request(epoch, 0, position["skip"]), np.empty, lambda index: None
        )
        if len(again.rows) < position["skip"]:
            raise again.error or ValueError(
                f"cannot go {position['skip']} datapoints on: the flow ended after "
                f"{len(again.rows)}; was the state taken from another data set?"
            )

    def _open(self, epoch: int) -> FlowIterator:
        return self.flow.iterator(Pass(epoch, self.branch, lambda *spec: self._allocate(*spec)))

    def run(self, request: Request, allocate: Allocate) -> Result:
        return self.run_carefully(request, allocate, lambda index: None)

    def run_carefully(
        self, request: Request, allocate: Allocate, begin: Callable[[int], None]
    ) -> Result:
        if self._iterator is None:
            self._iterator = self._open(request.epoch)
        iterator, self._allocate = self._iterator, allocate
        stuck: State | None = None
        result = Result([], before=iterator.state())
        while len(result.rows) < request.count:
            begin(request.start + len(result.rows))
            try:
                result.rows.append(next(iterator))
            except StopIteration:
                result.ended = True
                break
            except DataFlowTerminated as error:
                result.error = error
                break
            except Exception as error:  # noqa: BLE001 (the consumer gets it)
                # One that does not move on after an error would raise it for ever.
                if self.on_error == RAISE or (position := iterator.state()) == stuck:
                    result.error = error
                    break
                stuck = position
                result.skipped.append(f"{type(error).__name__}: {error}")
        self._allocate = np.empty
        return result

    def close(self) -> None:
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None
