"""The tasks of one epoch, in the order of their datapoints."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.iterators import FlowIterator, State
from towerpack.dataflow.parallel.tasks import Task
from towerpack.dataflow.parallel.work import Chunk, Request


class Indices:
    """Parts of a range of indices, for a flow with random access."""

    def __init__(self, epoch: int, start: int, stop: int):
        self._epoch, self._at, self._stop = epoch, start, stop

    def lane(self) -> int | None:
        return None

    def more(self, count: int) -> Task | None:
        if self._at >= self._stop:
            return None
        start, self._at = self._at, min(self._at + count, self._stop)
        return Task(Request(self._epoch, start, self._at - start), position={"index": start})


class ReadIndices(Indices):
    """The same, but read in this process: for a source that cannot be sent, or is too large."""

    def __init__(self, flow: DataFlow, epoch: Epoch, start: int, stop: int):
        super().__init__(epoch.number, start, stop)
        self._flow, self._read_epoch = flow, epoch

    def more(self, count: int) -> Task | None:
        task = super().more(count)
        if task is not None:
            start, stop = task.request.start, task.request.start + task.request.count
            try:
                task.request.inputs = self._flow.read(range(start, stop), self._read_epoch)
            except Exception as error:  # noqa: BLE001 (raised when its turn comes)
                if task.request.count > 1:  # find out which datapoint raised it
                    self._at = start
                    return self.more(1)
                task.done, task.chunk = True, Chunk([], error=error)
        return task


class Inputs:
    """Datapoints that are read in this process and mapped by a worker.

    An error of the input is raised after the datapoints before it, and ends these tasks: an
    iterator that has raised might raise the same error endlessly.
    """

    def __init__(self, epoch: int, flow_iterator: FlowIterator, index: int):
        self._epoch, self._input, self._index = epoch, flow_iterator, index
        self._failed: Task | None = None  # follows the datapoints that were read before it
        self._ended = False

    def lane(self) -> int | None:
        return None

    def more(self, count: int) -> Task | None:
        if self._ended:
            task, self._failed = self._failed, None
            return task
        position: State = {"input": self._input.state(), "index": self._index, "skip": 0}
        inputs: list[Any] = []
        try:
            while len(inputs) < count:
                inputs.append(next(self._input))
        except StopIteration:
            self._ended = True
        except BaseException as error:  # noqa: BLE001 (raised when its turn comes)
            self._ended = True
            self._failed = self._failure(error, position, len(inputs))
        task = self._task(inputs, position) if inputs else None
        return task or self.more(count)

    def _failure(self, error: BaseException, position: State, read: int) -> Task:
        request = Request(self._epoch, self._index + read, 0)
        # Not the input's own position, which may be undefined after an error.
        position = {**position, "skip": read}
        return Task(request, position=position, done=True, chunk=Chunk([], error=error))

    def _task(self, inputs: list[Any], position: State) -> Task | None:
        request = Request(self._epoch, self._index, len(inputs), inputs)
        self._index += len(inputs)
        return Task(request, position=position)


class BatchedInputs(Inputs):
    """The same, with `batch_size` datapoints per task, or fewer in the last with `remainder`.

    A batch within which the input raises is lost: the error replaces it.
    """

    def __init__(
        self, epoch: int, flow_iterator: FlowIterator, index: int, batch_size: int, remainder: bool
    ):
        super().__init__(epoch, flow_iterator, index)
        self._batch_size, self._remainder = batch_size, remainder

    def more(self, count: int) -> Task | None:
        return super().more(self._batch_size)

    def _failure(self, error: BaseException, position: State, read: int) -> Task:
        return super()._failure(error, position, 0)

    def _task(self, inputs: list[Any], position: State) -> Task | None:
        complete = len(inputs) == self._batch_size
        if not complete and (self._failed is not None or not self._remainder):
            return None
        request = Request(self._epoch, self._index, 1, inputs)
        self._index += 1  # it counts batches
        return Task(request, position=position)


class Copies:
    """Rounds of tasks, one for each copy of a stream, beginning with the copy `first`.

    All tasks of a round have the same length, so that their datapoints can alternate.
    """

    def __init__(self, epoch: int, positions: list[State | None], first: int):
        self._epoch = epoch
        lanes = range(len(positions))
        self._order = [*lanes[first:], *lanes[:first]]
        self._states = {lane: positions[lane] for lane in lanes if positions[lane] is not None}
        self._round: deque[int] = deque()
        self._count = 1
        self._made = 0

    def lane(self) -> int | None:
        return self._round[0] if self._round else self._order[0]

    def more(self, count: int) -> Task | None:
        if not self._round:
            self._round.extend(self._order)
            self._count = count
        lane = self._round.popleft()
        state = self._states.pop(lane, None)
        task = Task(Request(self._epoch, self._made, self._count), lane=lane)
        task.state = None if state is None else json.dumps(state)
        if not self._round:
            self._made += self._count
        return task
