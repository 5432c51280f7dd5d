"""What workers do: tasks in, datapoints out. The same code runs in processes, threads and here.

A *work* object is sent to every worker once. A task then states which datapoints to make. Every
task can be repeated in another worker with the same result, so the death of a worker does no harm.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from towerpack.dataflow.base import DataFlow, DataFlowTerminated
from towerpack.dataflow.epoch import Allocate, Epoch
from towerpack.dataflow.iterators import FlowIterator, State
from towerpack.dataflow.source.iterable import Source
from towerpack.dataflow.stacking import DroppedDatapoint, stack_rows
from towerpack.dataflow.stage.map import MapData

RAISE, SKIP = "raise", "skip"


@dataclass(slots=True)
class Request:
    """The request to a worker: `count` datapoints of an epoch, beginning at index `start`."""

    epoch: int
    start: int
    count: int
    inputs: list[Any] | None = None  # for work that maps datapoints which the parent has read
    stack: bool = False  # whether they should be one batch, if possible


@dataclass(slots=True)
class Chunk:
    """The result of a request: datapoints as the consumer receives them."""

    rows: list[Any]
    made: int = 0  # dropped ones included
    dropped: list[int] = field(default_factory=list)  # offsets of those
    error: BaseException | None = None  # to be raised after the rows
    skipped: list[str] = field(default_factory=list)  # descriptions of errors that were skipped
    before: State | None = None  # of a stream: its position before these
    ended: bool = False  # of a stream: there are no more
    stacked: bool = False  # `rows` is one batch of all requested datapoints
    kept: int = 0  # the number of rows before any was returned
    size: int = 0  # bytes
    busy: int = 0  # nanoseconds that a worker spent on them

    def __post_init__(self) -> None:
        self.kept = len(self.rows)

    @classmethod
    def of(cls, made: list[Any], **result: Any) -> Chunk:
        """From all datapoints that were made; a dropped one is None."""
        rows = [row for row in made if row is not None]
        dropped = [i for i, row in enumerate(made) if row is None]
        return cls(rows, len(made), dropped, **result)

    def offset_after(self, taken: int) -> int:
        """How many datapoints, dropped ones included, precede the row after the first `taken`."""
        if taken >= self.kept:
            return self.made
        if not self.dropped:
            return taken
        dropped, offset = set(self.dropped), 0
        while taken or offset in dropped:
            taken -= offset not in dropped
            offset += 1
        return offset


class Work(Protocol):
    """One kind of work. `begin` is called with the index of each datapoint before it is made."""

    def statistics_of(self) -> DataFlow:
        """The flow whose statistics are reported."""
        ...

    def run(self, request: Request, allocate: Allocate) -> Chunk:
        """Makes the datapoints, all at once where that is faster."""
        ...

    def run_carefully(
        self, request: Request, allocate: Allocate, begin: Callable[[int], None]
    ) -> Chunk:
        """Makes them one by one, so that an error or a death can be assigned to one."""
        ...


class ByIndex:
    """Work that can make each datapoint alone; an error is assigned to its datapoint."""

    branch: tuple[int, ...]
    on_error: str

    def many(self, request: Request, epoch: Epoch) -> list[Any]:
        raise NotImplementedError

    def one(self, request: Request, offset: int, epoch: Epoch) -> Any:
        raise NotImplementedError

    def batch(self, request: Request, epoch: Epoch) -> Any:
        rows = self.many(request, epoch)
        if any(row is None for row in rows):
            raise DroppedDatapoint(request.start, "a batch")
        return stack_rows(rows, epoch.allocate)

    def run(self, request: Request, allocate: Allocate) -> Chunk:
        epoch = Epoch(request.epoch, self.branch, allocate)
        # Errors are raised again below, where their datapoint is known.
        if request.stack:
            with contextlib.suppress(Exception):
                return Chunk([self.batch(request, epoch)], request.count, stacked=True)
        elif request.count > 1:
            with contextlib.suppress(Exception):
                return Chunk.of(self.many(request, epoch))
        return self.run_carefully(request, allocate, lambda index: None)

    def run_carefully(
        self, request: Request, allocate: Allocate, begin: Callable[[int], None]
    ) -> Chunk:
        epoch = Epoch(request.epoch, self.branch, allocate)
        rows: list[Any] = []
        skipped: list[str] = []
        for offset in range(request.count):
            begin(request.start + offset)
            try:
                rows.append(self.one(request, offset, epoch))
            except Exception as error:  # noqa: BLE001 (the consumer gets it)
                if self.on_error == RAISE:
                    return Chunk.of(rows, error=error)
                rows.append(None)
                skipped.append(f"{type(error).__name__}: {error}")
        return Chunk.of(rows, skipped=skipped)


class FlowWork(ByIndex):
    """Datapoints of a flow with random access, by index."""

    def __init__(self, flow: DataFlow, branch: tuple[int, ...], on_error: str):
        self.flow, self.branch, self.on_error = flow, branch, on_error

    def statistics_of(self) -> DataFlow:
        return self.flow

    def many(self, request: Request, epoch: Epoch) -> list[Any]:
        return self.flow.read(range(request.start, request.start + request.count), epoch)

    def one(self, request: Request, offset: int, epoch: Epoch) -> Any:
        return self.flow.read([request.start + offset], epoch)[0]

    def batch(self, request: Request, epoch: Epoch) -> Any:
        return self.flow.read_batch(np.arange(request.start, request.start + request.count), epoch)


class MapWork(ByIndex):
    """Applies a function to datapoints that the parent has read."""

    def __init__(self, flow: MapData, branch: tuple[int, ...], on_error: str):
        flow.height  # noqa: B018 (computed while the input is there: its random numbers need it)
        self.flow, self.branch, self.on_error = copy.copy(flow), branch, on_error
        # Its input stays with the parent, and perhaps could not be sent.
        self.flow.ds = Source(())

    def statistics_of(self) -> DataFlow:
        return self.flow

    def many(self, request: Request, epoch: Epoch) -> list[Any]:
        return [self.one(request, offset, epoch) for offset in range(request.count)]

    def one(self, request: Request, offset: int, epoch: Epoch) -> Any:
        datapoint = (request.inputs or ())[offset]
        if datapoint is None:  # the input dropped it
            return None
        return self.flow.apply([datapoint], [request.start + offset], epoch)[0]


class MapBatchWork(MapWork):
    """The same, and stacks `batch_size` results: the inputs of a task make one batch."""

    def __init__(self, flow: MapData, branch: tuple[int, ...], on_error: str, batch_size: int):
        super().__init__(flow, branch, on_error)
        self.batch_size = batch_size

    def one(self, request: Request, offset: int, epoch: Epoch) -> Any:
        first = request.start * self.batch_size
        indices = range(first, first + len(request.inputs or ()))
        rows = []
        for index, datapoint in zip(indices, request.inputs or (), strict=True):
            rows += self.flow.apply([datapoint], [index], epoch)
            if rows[-1] is None:
                raise DroppedDatapoint(index, "a batch")
        return stack_rows(rows, epoch.allocate, indices)


class StreamWork:
    """A flow without random access: one iterator, which continues from task to task.

    The tasks of a stream belong to one worker, in order. A worker that replaces a dead one restores
    the position before the first task that is not done.
    """

    def __init__(self, flow: DataFlow, branch: tuple[int, ...], on_error: str, copies: int = 1):
        self.flow, self.branch, self.on_error, self.copies = flow, branch, on_error, copies
        self._iterator: FlowIterator | None = None
        self._allocate: Allocate = np.empty  # of the current task

    def statistics_of(self) -> DataFlow:
        return self.flow

    def be_copy(self, number: int) -> None:
        """Makes this one of several copies, with random numbers of its own."""
        if self.copies > 1:
            self.branch = (*self.branch, number)

    def restore(self, epoch: int, state: str) -> None:
        """Restores a position: that of `input`, and `skip` datapoints after it."""
        position = json.loads(state)
        self.close()
        self._iterator = self._open(epoch)
        if position["input"] is not None:
            self._iterator.restore(position["input"])
        again = self.run_carefully(
            Request(epoch, 0, position["skip"]), np.empty, lambda index: None
        )
        if again.made < position["skip"]:
            raise again.error or ValueError(
                f"cannot skip {position['skip']} datapoints: the flow ended after "
                f"{again.made}; was the state taken from another data set?"
            )

    def _open(self, epoch: int) -> FlowIterator:
        return self.flow.open(Epoch(epoch, self.branch, lambda *spec: self._allocate(*spec)))

    def run(self, request: Request, allocate: Allocate) -> Chunk:
        return self.run_carefully(request, allocate, lambda index: None)

    def run_carefully(
        self, request: Request, allocate: Allocate, begin: Callable[[int], None]
    ) -> Chunk:
        if self._iterator is None:
            self._iterator = self._open(request.epoch)
        iterator, self._allocate = self._iterator, allocate
        stuck: State | None = None
        result = Chunk([], before=iterator.state())
        while result.made < request.count:
            begin(request.start + result.made)
            try:
                result.rows.append(next(iterator))
                result.made += 1
            except StopIteration:
                result.ended = True
                break
            except DataFlowTerminated as error:
                result.error = error
                break
            except Exception as error:  # noqa: BLE001 (the consumer gets it)
                # An iterator that does not advance after an error would raise it endlessly.
                if self.on_error == RAISE or (position := iterator.state()) == stuck:
                    result.error = error
                    break
                stuck = position
                result.skipped.append(f"{type(error).__name__}: {error}")
        self._allocate = np.empty
        result.kept = result.made
        return result

    def close(self) -> None:
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None
