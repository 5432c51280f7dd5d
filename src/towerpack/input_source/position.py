"""Positions: where in its flow each batch of a source came from."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from towerpack.core import logger
from towerpack.dataflow import BatchData
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.iterators import FlowIterator, State
from towerpack.dataflow.parallel.share import Share
from towerpack.input_source.buffer import aligned_empty


class Mark(NamedTuple):
    """The flow's position when `number` datapoints had been read, `skip` datapoints further on."""

    number: int
    flow: State  # of the flow's iterator; only {'epoch': n} at the beginning of an epoch
    batch: int  # how many datapoints of the epoch were before that position
    skip: int = 0

    def state(self, number: int) -> State:
        return {"flow": self.flow, "batch": self.batch, "skip": self.skip + number - self.number}

    def of(self, number: int) -> tuple[int, int]:
        """The epoch of datapoint `number`, which is in the same one, and its number there."""
        return self.flow["epoch"], self.batch + self.skip + number - self.number

    @classmethod
    def of_state(cls, state: Any) -> Mark:
        if not isinstance(state, dict) or not {"flow", "batch", "skip"} <= set(state):
            raise ValueError(
                f"expected the state of an input source ('flow', 'batch', 'skip'), received "
                f"{state!r}; was it saved by a run with another input source?"
            )
        return cls(0, state["flow"], state["batch"], state["skip"])


START = Mark(0, {"epoch": 0}, 0)


class Positions:
    """Marks of what one thread reads, so that another can ask where the n-th datapoint came from.

    There is a mark at the start of every epoch, and some within it. A position is exact however
    few they are: a mark, and a number of datapoints to read and drop after it.
    """

    def __init__(self, begin: Mark):
        self._marks = deque([begin])
        self._lock = threading.Lock()

    def add(self, mark: Mark) -> None:
        with self._lock:
            self._marks.append(mark)

    def forget_before(self, number: int) -> None:
        """Drops the marks that only positions before `number` need."""
        with self._lock:
            while len(self._marks) > 1 and self._marks[1].number <= number:
                self._marks.popleft()

    def before(self, number: int) -> Mark:
        """The last mark at or before the position after `number` datapoints."""
        with self._lock:
            marks = [mark for mark in self._marks if mark.number <= number]
        if not marks:
            raise ValueError(
                f"expected a position at or after datapoint {self._marks[0].number}, received "
                f"{number}: earlier ones are forgotten"
            )
        return marks[-1]

    def of(self, number: int) -> tuple[int, int]:
        """The epoch of a datapoint, and its number there."""
        return self.before(number).of(number)


class CountedPositions(Positions):
    """Positions in a flow whose epochs all have `size` datapoints: they are computed."""

    def __init__(self, begin: Mark, size: int):
        super().__init__(begin)
        epoch, taken = begin.of(0)
        self.begin, self._size = epoch * size + taken, size

    def before(self, number: int) -> Mark:
        epoch, taken = divmod(self.begin + number, self._size)
        return Mark(number, {"epoch": epoch}, 0, taken)


class FlowStream:
    """A flow epoch after epoch, or one epoch of it, from a position on.

    `epoch` and `number` say where the datapoint is that came last, and `read` how many were read.
    With a `share`, those of other ranks are read and left out.
    """

    def __init__(
        self, flow: DataFlow, begin: Mark, endless: bool = True, share: Share | None = None
    ):
        self._flow, self._endless, self._share = flow, endless, share
        self.epoch, self.number, self.read = begin.flow["epoch"], begin.batch - 1, 0
        self._skip = begin.skip
        self._made: dict[int, np.ndarray] = {}  # by `_allocate`, at their addresses
        self._stacking, self._may_stack = False, True
        self._datapoints = self._iterate()
        self._empty = "at" not in begin.flow
        if not self._empty:
            self._datapoints.restore(begin.flow)

    def __iter__(self) -> FlowStream:
        return self

    def __next__(self) -> Any:
        while True:
            for datapoint in self._datapoints:
                self.number += 1
                self._empty = False
                if self._skip:
                    self._skip -= 1
                    continue
                self.read += 1
                if self._share is None or self._share.has(self.read - 1):
                    return datapoint
            self._begin_epoch()

    def next_stack(self, count: int) -> tuple[Any, int] | None:
        """Up to `count` datapoints of this epoch, stacked; None if they come one by one."""
        if self._skip or self._share is not None or not self._may_stack:
            return None
        self._made.clear()
        self._stacking = True
        try:
            found = self._datapoints.next_stack(count)
        finally:
            self._stacking = False
        if found is None:
            self._may_stack = False
            return None
        self.number += found[1]
        self.read += found[1]
        self._empty = False
        return found

    def _iterate(self) -> FlowIterator:
        self._may_stack = True  # until there is no stack; then not before the next epoch
        return self._flow.iterate(self.epoch, allocate=self._allocate)

    def _allocate(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        if not self._stacking:
            return np.empty(shape, dtype)
        array = aligned_empty(shape, dtype)
        self._made[array.ctypes.data] = array
        return array

    def owns(self, array: np.ndarray) -> bool:
        """Whether the last stack was written into this array, which was allocated for it."""
        return array.flags.c_contiguous and array.ctypes.data in self._made

    def _begin_epoch(self) -> None:
        self._datapoints.close()
        if self._empty:
            raise ValueError(f"{self._flow.label()} produced nothing in a whole pass; is it empty?")
        if not self._endless:
            raise StopIteration
        self.epoch, self.number, self._empty = self.epoch + 1, -1, True
        self._datapoints = self._iterate()

    def state(self) -> State:
        """Of the flow, after the datapoint that came last."""
        return self._datapoints.state()

    def close(self) -> None:
        self._datapoints.close()


def adapted(state: Any, flow: DataFlow, batch_size: int | None) -> State:
    """The state that a run saved, for a flow with batches of this size.

    A run that resumes with twice as many towers has batches of half the size. So a position also
    says how many datapoints of the epoch were taken, and in batches of what size. No datapoint is
    left out or repeated if those are whole batches of the new size; otherwise the last ones come
    again, with a warning. A `BatchData` goes there at once. Other flows read and drop what is
    before.
    """
    begin = Mark.of_state(state)
    saved: State | None = state.get("datapoints")
    if saved is None or batch_size is None or saved["batch_size"] == batch_size:
        return state
    batches, again = divmod(saved["taken"], batch_size)
    if again:
        logger.warning(
            "the checkpoint was saved after %d datapoints of an epoch, which are not a multiple of "
            "the batch size %d: the last %d of them come a second time",
            saved["taken"],
            batch_size,
            again,
        )
    datapoints = {**saved, "taken": batches * batch_size, "batch_size": batch_size}
    before, rest = divmod(begin.batch * saved["batch_size"], batch_size)
    same_epoch = begin.flow["epoch"] == saved["epoch"]
    if isinstance(flow, BatchData) and same_epoch and not rest and before <= batches:
        mark = Mark(0, begin.flow, before, batches - before)
    else:
        mark = Mark(0, {"epoch": saved["epoch"]}, 0, batches)
    return {**mark.state(0), "datapoints": datapoints}
