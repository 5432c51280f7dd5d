"""What the sources that read a flow have in common, and the one that needs no thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.dataflow import kept_workers
from towerpack.dataflow.base import DataFlow, DataFlowTerminated
from towerpack.dataflow.iterators import State
from towerpack.dataflow.source.iterable import as_flow
from towerpack.dataflow.statistics import Parallel, snapshot
from towerpack.dataflow.workers.shared_memory import is_in_slot
from towerpack.input_source.base import InputSource
from towerpack.input_source.buffer import Batches, Buffer
from towerpack.input_source.part import OwnPart, goes_back
from towerpack.input_source.position import START, FlowStream, Mark, adapted
from towerpack.input_source.signature import InputCheck

MARK_SECONDS = 0.05  # between two calls of the flow's `state`, which may cost as much as a batch
MAX_AHEAD = 32  # batches that a FeedInput reads for one call


class FlowInput(InputSource):
    """A source that reads a flow into a `Buffer`, one or several batches at a time (`_read`).

    The position (`state`) is as exact as that of the flow. Only a `RemoteDataZMQ`, which cannot go
    back, continues where it was.
    """

    datapoints_per_batch = 1
    """How many datapoints of the flow are in a batch."""

    ends_in_wait = True

    _endless = True
    """Whether the next epoch follows at the end of the flow."""

    def __init__(self, ds: Any):
        self.flow: DataFlow = as_flow(ds)
        # Makes the counters of all stages now. A thread that packs the flow for its workers must
        # not find that another one adds attributes to it.
        snapshot(self.flow)
        self._begin = START
        self._restored: State = {}
        self._clear()

    def _clear(self) -> None:
        """Forgets everything except where to begin."""
        self._buffer = self._new_buffer()
        share = self.share
        if share is not None:
            share = replace(share, unit=share.unit * self.datapoints_per_batch)
        self._part = OwnPart(self.flow, self._begin, share, self._endless)
        # The flow that this process reads: all of it, or its share.
        self.own_flow = self._part.flow
        self._from_workers = isinstance(self.own_flow, Parallel)
        self._failure: BaseException | None = None
        self._read_count = 0  # datapoints that were put into the buffer
        self._mark_due = 0.0
        self._epoch = self._begin.flow["epoch"]

    def _new_buffer(self) -> Buffer:
        raise NotImplementedError

    def _running(self) -> bool:
        raise NotImplementedError

    def setup(self, signature: Any) -> None:
        self.close()
        super().setup(signature)
        self._clear()

    def specs(self) -> list[Any]:
        batching = self.flow.batching()
        if batching is None or not batching.exact or self.datapoints_per_batch > 1:
            return list(self.signature)
        return [_with_rows(spec, batching.size) for spec in self.signature]

    def _open(self) -> tuple[FlowStream, InputCheck]:
        check = InputCheck(self._datapoint_signature(), self.flow.label())
        return self._part.stream(), check

    def _datapoint_signature(self) -> Sequence[Any]:
        """What a datapoint of the flow has to fit."""
        return self.signature

    def _read(self, stream: FlowStream, check: InputCheck) -> None:
        """Puts the next batch, or several at once, into the buffer."""
        datapoint = next(stream)
        components = check(datapoint)
        self._note(stream, 1)
        self._buffer.put(components, keep=all(map(self._is_ours, components)))
        self._note_read(stream, 1)

    def _note(self, stream: FlowStream, count: int) -> None:
        """Marks the start of an epoch, before its first datapoints can be taken."""
        if stream.epoch != self._epoch:
            self._epoch = stream.epoch
            before = stream.number + 1 - count  # not 0 if a restored position skipped some
            number = stream.read - count
            self._part.positions.add(Mark(number, {"epoch": stream.epoch}, 0, before))

    def _note_read(self, stream: FlowStream, count: int) -> bool:
        """Counts what was put, and marks the position if that is due; whether it was."""
        self._read_count = stream.read
        due = time.monotonic() >= self._mark_due
        if due:
            self._part.positions.add(Mark(self._read_count, stream.state(), stream.number + 1))
            self._mark_due = time.monotonic() + MARK_SECONDS
        return due

    def _is_ours(self, array: np.ndarray) -> bool:
        """Whether no one else has this array of a datapoint, and could write to it.

        True of what the flow's own workers have made. Other flows may return one array again and
        again, with other content.
        """
        return self._from_workers and is_in_slot(array)

    def size(self) -> int | None:
        try:
            return len(self.flow) // self.datapoints_per_batch
        except TypeError:
            return None

    def batch_size(self) -> int | None:
        size = self._rows()
        return None if size is None else size * self.datapoints_per_batch

    def _rows(self) -> int | None:
        """How many datapoints one of the flow's is made of: those of its batches."""
        batching = self.flow.batching()
        return batching.size if batching is not None else super().batch_size()

    def _ready(self, batches: int, seconds: float | None) -> tuple[int, bool]:
        if not self._running() and not self._buffer.ended:
            raise RuntimeError("expected start() before batches are read: no data would ever come")
        return self._buffer.wait(batches, seconds)

    def _take(self, limit: int, group: int, rows: int) -> Batches:
        return self._buffer.take(limit, group, rows)

    def state_at(self, delivered: int) -> State:
        number = self._part.used(delivered * self.datapoints_per_batch)
        mark = self._part.positions.before(number)
        if not goes_back(self.flow):
            return mark._replace(skip=0).state(mark.number)
        # The position is also counted in datapoints, for a run with batches of another size.
        rows, datapoints = self._rows(), self._restored.get("datapoints")
        if rows is not None and not (number == 0 and self._restored):
            epoch, batches = self._part.positions.of(number)
            datapoints = {"epoch": epoch, "taken": batches * rows, "batch_size": rows}
        return {**mark.state(number), "datapoints": datapoints}

    def _forget_before(self, delivered: int) -> None:
        self._part.positions.forget_before(self._part.used(delivered * self.datapoints_per_batch))

    def restore(self, state: State | None) -> None:
        if self._running():
            raise RuntimeError("expected restore() before start()")
        if state is not None:
            self._restored = adapted(state, self.flow, self._rows())
            self._begin = Mark.of_state(self._restored)
            self._clear()

    def reset_state(self) -> None:
        if self._running():
            self.raise_failure()
            self.close()
            self._start_again(START)

    def _start_again(self, begin: Mark) -> None:
        self._begin, self._restored, self.delivered, self.held = begin, {}, 0, 0
        self._clear()
        self.start()

    def position(self, batch: int) -> str:
        first = self._part.place(batch * self.datapoints_per_batch)
        try:
            epoch, number = self._part.positions.of(first)
        except ValueError:  # it is forgotten
            return super().position(batch)
        if first >= self._read_count:
            return super().position(batch)
        what = "batch" if self.datapoints_per_batch == 1 else "the batch from datapoint"
        return f"{what} {number} of pass {epoch} of {self.flow.label()}, both counted from 0"

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _label(self) -> str:
        return self.flow.label()


class FeedInput(FlowInput):
    """Iterates a flow in the thread that trains, between the steps: simple, and easy to debug.

    In order, every datapoint once. The step waits for its data each time; `QueueInput` prepares it
    meanwhile. For one tower. Positions are those of `QueueInput`.

    Args:
        infinite: whether to continue with the next epoch at the end of the flow. If not, the end
            of the flow ends training.
    """

    def __init__(self, ds: Any, infinite: bool = True):
        self._endless = infinite
        self._closing: contextlib.ExitStack | None = None
        super().__init__(ds)

    def _new_buffer(self) -> Buffer:
        return Buffer(MAX_AHEAD)

    def _running(self) -> bool:
        return self._closing is not None

    def start(self) -> None:
        if not self.signature:
            raise RuntimeError("expected setup(signature) before start()")
        if self._closing is None and not self._buffer.ended:
            with contextlib.ExitStack() as stack:
                stack.enter_context(kept_workers(self.own_flow))
                self._stream, self._check = self._open()
                stack.callback(self._stream.close)
                self._closing = stack.pop_all()

    def _ready(self, batches: int, seconds: float | None) -> tuple[int, bool]:
        end = None if seconds is None else time.monotonic() + seconds
        target = min(batches, self._buffer.room)
        while self._closing and self._buffer.count < target and not self._buffer.ended:
            if end is not None and time.monotonic() >= end:
                break
            try:
                self._read(self._stream, self._check)
            except (StopIteration, DataFlowTerminated):
                self._buffer.end()
            except Exception as error:  # noqa: BLE001 (raised after what was read before)
                self._failure = error
                self._buffer.end()
        return super()._ready(batches, 0.0)

    def close(self) -> None:
        closing, self._closing = self._closing, None
        if closing is not None:
            self._buffer.close()
            closing.close()


def _with_rows(spec: Any, rows: int) -> Any:
    """The spec with its first dimension known, if it was open."""
    if not spec.shape.rank or spec.shape[0] is not None:
        return spec
    return tf.TensorSpec([rows, *spec.shape[1:]], spec.dtype, spec.name)
