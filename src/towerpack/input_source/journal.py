"""What has been put into a queue, and where in the flow each batch came from."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, NamedTuple

from towerpack.dataflow.base import State
from towerpack.input_source.signature import Form

MAX_MARKS = 256  # of the flow's position; when there are more, every second one goes
MAX_PASSES = 10_000  # whose beginnings are known: more than any queue holds


class Mark(NamedTuple):
    """The flow's position when `number` batches had been put, `skip` batches further on."""

    number: int
    flow: State  # of the flow's iterator; only {'epoch': n} at the beginning of a pass
    batch: int  # how many batches of the pass were before that position
    skip: int = 0

    def state(self, taken: int) -> State:
        return {"flow": self.flow, "batch": self.batch, "skip": self.skip + taken - self.number}

    @classmethod
    def of_state(cls, state: Any) -> Mark:
        if not isinstance(state, dict) or not {"flow", "batch", "skip"} <= set(state):
            raise ValueError(
                f"expected the state of an input source ('flow', 'batch', 'skip'), received "
                f"{state!r}; was it saved by a run with another input source?"
            )
        return cls(0, state["flow"], state["batch"], state["skip"])


class PassBegin(NamedTuple):
    """The first batch of a pass that was put: as which one, and its number in the pass."""

    number: int
    epoch: int
    batch: int


class Journal:
    """Counts what one thread puts, so that another can ask where the n-th batch came from.

    Marks are kept from the last one that the consumer has passed on. However few are left, a
    position is exact: it is a mark and a number of batches to draw and drop after it.
    """

    def __init__(self, begin: Mark):
        self.count = begin.number
        self._marks = deque([begin])
        self._passes: deque[PassBegin] = deque(maxlen=MAX_PASSES)
        self._unusual: deque[int] = deque()
        self._usual: Form | None = None
        self._usual_from = 0  # the first batch that is known to have it
        self._previous: Form | None = None
        self._settled = False  # whether the usual form is decided
        self.taken = begin.number  # by the consumer, as far as it has said
        self._lock = threading.Lock()

    def note_pass(self, epoch: int, batch: int) -> None:
        """The next batch put is the `batch`-th of that pass."""
        with self._lock:
            while len(self._passes) > 1 and self._passes[1].number <= self.taken:
                self._passes.popleft()
            self._passes.append(PassBegin(self.count, epoch, batch))

    def note_form(self, form: Form) -> None:
        """The form of the batch that is put next.

        Usual is the form of the first batch. But that may be the last, short one of a pass, where a
        run was resumed; so another one that comes twice in a row, before the first did and before
        somebody has asked, takes over.
        """
        if form == self._previous and form == self._usual:
            self._settled = True
            return
        with self._lock:
            if self._usual is None:
                self._usual, self._usual_from = form, self.count
            elif form == self._previous and not self._settled:
                self._usual, self._usual_from = form, self.count - 1
                self._settled = True
                self._unusual.clear()
            elif form != self._usual:
                self._unusual.append(self.count)
            self._previous = form

    def usual(self) -> Form | None:
        """The form of a usual batch; from now on it does not change any more."""
        with self._lock:
            self._settled = self._usual is not None
            return self._usual

    def mark(self, flow: State, batch: int) -> None:
        """The flow's position after the batches put so far."""
        with self._lock:
            self._drop_marks()
            if len(self._marks) >= MAX_MARKS:
                self._marks = deque(m for i, m in enumerate(self._marks) if i % 2 == 0)
            self._marks.append(Mark(self.count, flow, batch))

    def _drop_marks(self) -> None:
        while len(self._marks) > 1 and self._marks[1].number <= self.taken:
            self._marks.popleft()

    def mark_before(self, taken: int) -> Mark:
        """The last mark at or before that many batches."""
        with self._lock:
            before = [mark for mark in self._marks if mark.number <= taken]
        if not before:
            raise ValueError(
                f"expected a position at or after batch {self.taken}, which was said to be taken, "
                f"received {taken}"
            )
        return before[-1]

    def usual_until(self, taken: int) -> int:
        """The number of the first batch from `taken` on that is not surely a usual one."""
        self.usual()
        with self._lock:
            if taken < self._usual_from:
                return taken
            while self._unusual and self._unusual[0] < taken:
                self._unusual.popleft()
            return self._unusual[0] if self._unusual else self.count

    def passed(self, taken: int) -> tuple[int, int] | None:
        """The pass after that many batches, and how many of it; None if nothing was put yet."""
        with self._lock:
            known = [begin for begin in self._passes if begin.number <= taken]
        if not known:
            return None
        return known[-1].epoch, known[-1].batch + taken - known[-1].number

    def find(self, batch: int) -> tuple[int, int] | None:
        """The epoch of a batch, and its number in the pass; None if that is not known any more."""
        with self._lock:
            known = [begin for begin in self._passes if begin.number <= batch]
        if not known or batch >= self.count:
            return None
        return known[-1].epoch, known[-1].batch + batch - known[-1].number
