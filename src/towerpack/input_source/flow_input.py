"""What the sources that read a flow have in common: the check of its datapoints, and positions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack.dataflow import RemoteDataZMQ
from towerpack.dataflow.base import DataFlow, State, as_flow
from towerpack.dataflow.parallel.ring import is_in_slot
from towerpack.dataflow.statistics import Parallel, snapshot, walk
from towerpack.input_source.base import EndOfData, InputSource
from towerpack.input_source.journal import Journal, Mark
from towerpack.input_source.known_rows import known_rows, with_rows
from towerpack.input_source.other_batches import adapted, declared_batch_size
from towerpack.input_source.signature import InputCheck
from towerpack.input_source.stream import FlowStream

MARK_SECONDS = 0.05  # between two looks at the flow's position, which may cost as much as a batch


class FlowInput(InputSource):
    """A source that reads a flow ahead, batch by batch (`_read_batch`), and keeps a journal of it.

    The position (`state`) follows the batches that were taken, whatever was read ahead. It is as
    exact as the flow's own; only a `RemoteDataZMQ`, which cannot go back, goes on where it was.
    """

    datapoints_per_batch = 1
    """How many datapoints of the flow a tower takes at once."""

    def __init__(self, ds: Any):
        self.flow: DataFlow = as_flow(ds)
        # Makes the counters of all stages, which the trainer's thread would otherwise add to them
        # while another thread packs the flow for its workers.
        snapshot(self.flow)
        self._from_workers = isinstance(self.flow, Parallel)
        self._begin = Mark(0, {"epoch": 0}, 0)
        self._restored: State = {}
        self._clear()

    def _clear(self) -> None:
        """Forgets everything but where to begin."""
        self._journal = Journal(self._begin)
        self._failure: BaseException | None = None
        self._ended = False
        self._mark_due = 0.0
        self._epoch: int | None = None

    def setup(self, signature: Any) -> None:
        super().setup(signature)
        self.close()
        self._begin = self._begin._replace(number=0)
        self._clear()

    def _datapoint_signature(self) -> Sequence[Any]:
        """What a datapoint of the flow has to fit."""
        return self.signature

    def _shapes(self) -> list[Any]:
        """The shapes of the inputs: a graph that knows the batch's size need not wait for it."""
        rows = known_rows(self.flow) if self.datapoints_per_batch == 1 else None
        return [with_rows(spec.shape, rows) for spec in self.signature]

    def _open(self, endless: bool = True) -> tuple[FlowStream, InputCheck]:
        check = InputCheck(self._datapoint_signature(), self.flow.label())
        return FlowStream(self.flow, self._begin, endless), check

    def _note(self, stream: FlowStream, check: InputCheck, count: int = 1) -> None:
        """Before the datapoints that came last are put where steps find them."""
        journal = self._journal
        if stream.epoch != self._epoch:
            self._epoch = stream.epoch
            journal.note_pass(stream.epoch, stream.batch - count + 1)
        journal.note_form(check.form)

    def _note_put(self, stream: FlowStream, count: int = 1) -> bool:
        """After it; whether the position was looked at: the moment for other slow looks, too."""
        self._journal.count += count
        due = time.monotonic() >= self._mark_due
        if due:
            self._journal.mark(stream.state(), stream.batch + 1)
            self._mark_due = time.monotonic() + MARK_SECONDS
        return due

    def _is_ours(self, array: np.ndarray) -> bool:
        """Whether nobody else has this array of a datapoint, and could write to it.

        True of what the flow's own workers have made. Other flows may give one array again and
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
        return declared_batch_size(self.flow) or super().batch_size()

    def wait(self, limit: int, taken: int, timeout: float | None = None) -> int:
        first = taken * self.datapoints_per_batch
        target = first + limit * self.datapoints_per_batch
        self._journal.taken = first - self.held * self.datapoints_per_batch
        if self._journal.count < target and not self._ended:
            begin = time.perf_counter()
            try:
                self._wait_for(target, timeout)
            finally:
                self.waited += time.perf_counter() - begin
        ended = self._ended  # looked at before the count, which is final then
        ready = min((self._journal.count - first) // self.datapoints_per_batch, limit)
        if ready <= 0 and ended:
            self.raise_failure()
            raise EndOfData(f"{self.flow.label()} has ended after {taken} batches")
        return max(ready, 0)

    def _wait_for(self, target: int, timeout: float | None) -> None:
        """Blocks until as many datapoints were read since the start, if there is room for them."""
        raise NotImplementedError

    def uniform(self, limit: int, taken: int) -> int:
        ready = self.wait(limit, taken)
        return min(ready, self._journal.usual_until(taken) - taken)

    def usual_shapes(self) -> list[tuple[int, ...]] | None:
        form = self._journal.usual()
        return None if form is None else [shape for _, shape in form]

    def state(self, taken: int) -> State | None:
        first = taken * self.datapoints_per_batch
        mark = self._journal.mark_before(first)
        if not _goes_back(self.flow):
            return mark._replace(skip=0).state(mark.number)
        return {**mark.state(first), "datapoints": self._datapoints(first)}

    def _datapoints(self, first: int) -> State | None:
        """Where that is, counted in datapoints: for a run with batches of another size."""
        rows, passed = self._rows(), self._journal.passed(first)
        if rows is None or passed is None:
            return self._restored.get("datapoints")
        epoch, batches = passed
        return {"epoch": epoch, "taken": batches * rows, "batch_size": rows}

    def restore(self, state: State | None) -> None:
        if self._started():
            raise RuntimeError("expected restore() before start()")
        if state is not None:
            self._restored = adapted(state, self.flow, self._rows())
            self._begin = Mark.of_state(self._restored)
            self._journal = Journal(self._begin)

    def _started(self) -> bool:
        raise NotImplementedError

    def position(self, batch: int) -> str:
        found = self._journal.find(batch * self.datapoints_per_batch)
        if found is None:
            return super().position(batch)
        epoch, number = found
        what = "batch" if self.datapoints_per_batch == 1 else "the batch from datapoint"
        return f"{what} {number} of pass {epoch} of {self.flow.label()}, both counted from 0"

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def _goes_back(flow: DataFlow) -> bool:
    """Whether a flow can be put back to where it was; what was received from afar is gone."""
    return not any(isinstance(stage, RemoteDataZMQ) for stage in walk(flow))
