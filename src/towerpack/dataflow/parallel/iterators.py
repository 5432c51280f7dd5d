"""Iterators over datapoints that workers make: by index, from an input, by copies of a flow.

Workers are started by the first `next`, so `restore` costs nothing. After an error, the end or
`close`, nothing is left of them. After an error, `next` starts them again at the datapoint that
raised it.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable
from typing import Any

from towerpack.core import logger
from towerpack.dataflow.iterators import FlowIterator, State, checked_index
from towerpack.dataflow.parallel.sources import Copies, Indices
from towerpack.dataflow.parallel.tasks import Executor, TaskSource, Window
from towerpack.dataflow.parallel.work import Chunk
from towerpack.dataflow.stacking import stack_rows
from towerpack.dataflow.statistics import Counter


class Run:
    """How a stage runs its work in one epoch, and what its statistics report afterwards."""

    def __init__(
        self,
        name: str,
        prefetch: int,
        start: Callable[[], Executor],
        keep: Callable[[Executor], bool] = lambda executor: False,
        following: Callable[[], TaskSource] | None = None,
    ):
        self.name, self.prefetch, self.start = name, prefetch, start
        self.keep = keep  # keeps the workers at the end of an epoch; returns whether it did
        self.following = following  # the tasks of the next epoch, if workers may begin them early
        # Of stages that only partly run in workers: a counter, and its datapoints for each of ours.
        self.counters: list[tuple[Counter, int]] = []
        self.executor: Executor | None = None
        self.window: Window | None = None
        self.dropped = self.skipped = 0

    def note(self, chunk: Chunk) -> None:
        for counter, datapoints in self.counters:
            counter.datapoints += datapoints * chunk.made
            counter.nanoseconds += chunk.busy
        self.dropped += len(chunk.dropped)
        if chunk.skipped:
            if not self.skipped:
                first = chunk.skipped[0]
                logger.warning("%s skips datapoints that raise; the first: %s", self.name, first)
            self.skipped += len(chunk.skipped)


class ParallelIterator(FlowIterator):
    """Base class: returns the datapoints of one chunk after another.

    A subclass defines how tasks are made from a position (`_open`), and which position follows
    some datapoints of a chunk (`_position`).
    """

    def __init__(self, run: Run, begin: State):
        self._run = run
        self._at = begin  # where to begin; once begun, the position before `_chunk`
        self._window: Window | None = None
        self._release: weakref.finalize | None = None
        self._rows: list[Any] = []  # of the chunk, in reverse order; a returned row is not kept
        self._taken = 0  # rows of the chunk that were returned
        self._chunk = Chunk([])
        self._stacked: int | None = None  # the size of the batches that workers make; None: rows
        self._ended = False

    def _open(self, position: State) -> TaskSource:
        raise NotImplementedError

    def _position(self, begin: State, chunk: Chunk, taken: int) -> State:
        raise NotImplementedError

    def __next__(self) -> Any:
        if not self._rows:
            if self._stacked:
                self._change_to(None)
            self._next_chunk()
        self._taken += 1
        return self._rows.pop()

    def _change_to(self, stacked: int | None) -> None:
        """Makes workers return batches of this size from now on, or single datapoints."""
        self._stop()
        self._stacked = stacked

    def _next_chunk(self) -> None:
        """Waits for the next chunk that has rows, or raises the error or end that comes instead."""
        begun = time.perf_counter_ns()
        try:
            self._await_chunk()
        except BaseException as error:
            # End the workers even if a traceback keeps this iterator alive.
            self._ended = isinstance(error, StopIteration)
            self._stop(failed=not self._ended)
            raise
        # Counted per chunk: counting every small datapoint would cost too much.
        self.counter.nanoseconds += time.perf_counter_ns() - begun
        self.counter.datapoints += self._chunk.made - len(self._chunk.dropped)

    def _await_chunk(self) -> None:
        if self._ended:
            raise StopIteration
        while True:
            error = self._chunk.error
            self._settle()
            if error is not None:
                raise error
            if self._window is None and not self._begin():
                raise StopIteration
            found = self._fetch()
            if found is None:
                raise StopIteration
            self._at, self._chunk = found
            self._run.note(self._chunk)
            self._rows, self._chunk.rows = self._chunk.rows[::-1], []
            if self._rows:
                return

    def _settle(self) -> None:
        """Moves the position to the rows of the chunk that were returned, and drops the others."""
        self._at = self._position(self._at, self._chunk, self._taken)
        self._chunk, self._taken, self._rows = Chunk([]), 0, []

    def _begin(self) -> bool:
        """Starts the workers, if there is a task."""
        source = self._open(self._at)
        first = source.more(self._stacked or 1)
        if first is None:
            return False
        executor = self._run.start()
        self._release = weakref.finalize(self, executor.close)
        following = self._run.following() if self._run.following else None
        window = Window(executor, source, self._run.prefetch, self._stacked, following)
        self._window = self._run.window = window
        self._run.executor = executor
        window.begin(first)
        return True

    def _fetch(self) -> tuple[State, Chunk] | None:
        found = self._window.next_chunk() if self._window else None
        if found is None:
            return None
        task, chunk = found
        return task.position or {}, chunk

    def _stop(self, failed: bool = False) -> None:
        """Ends the workers, unless they are kept for the next epoch; keeps the position."""
        self._settle()
        window, self._window = self._window, None
        if self._release is not None:
            executor = self._run.executor
            if window is not None:
                window.leave_ahead()
            if not failed and executor is not None and self._run.keep(executor):
                self._release.detach()
            else:
                self._release()
            self._release = None

    def state(self) -> State:
        return self._position(self._at, self._chunk, self._taken)

    def restore(self, state: State) -> None:
        self._stop()
        self._at, self._ended = state, False

    def close(self) -> None:
        self._stop()
        self._ended = True


class StackingIterator(ParallelIterator):
    """An iterator whose datapoints the workers can also stack, in shared memory."""

    _stacks = True  # until it turns out that some datapoints cannot be stacked

    def next_batch(self, size: int, number: int) -> tuple[Any, int]:
        begin = self.state()
        try:
            if self._stacks:
                if self._stacked != size or self._rows:
                    self._change_to(size)
                self._next_chunk()
                if self._chunk.stacked:
                    self._taken = 1
                    batch, made = self._rows.pop(), self._chunk.made
                    if made < size:
                        self._require_end()
                    return batch, made
                # Some are dropped, or differ in shape: from now on they are sent one by one.
                self._stacks = False
                self.restore(begin)
            rows = list(itertools.islice(self, size))
            if not rows:
                raise StopIteration
            return stack_rows(rows, indices=range(number, number + len(rows))), len(rows)
        except StopIteration:
            raise
        except BaseException:
            self.restore(begin)
            raise

    def _require_end(self) -> None:
        """After a stack that is not full: raises the error that came instead of its next row."""
        try:
            self._next_chunk()
        except StopIteration:
            return
        raise RuntimeError(f"{self._run.name} stacked too few datapoints")


class IndexedIterator(StackingIterator):
    """Iterates over a flow with random access; the position is an index."""

    def __init__(self, run: Run, size: int, open_at: Callable[[int], TaskSource]):
        super().__init__(run, {"index": 0})
        self._size, self._open_at = size, open_at

    def _open(self, position: State) -> TaskSource:
        return self._open_at(position["index"])

    def _position(self, begin: State, chunk: Chunk, taken: int) -> State:
        return {"index": begin["index"] + chunk.offset_after(taken)}

    def restore(self, state: State) -> None:
        super().restore({"index": checked_index(state["index"], self._size)})

    def close(self) -> None:
        super().close()
        self._at = {"index": self._size}


class MappingIterator(StackingIterator):
    """Iterates over an input in this process and has workers map its datapoints.

    The position is the input's state before the chunk, and a count. With a `batch_size`, this
    number of the input's datapoints make one.
    """

    def __init__(
        self,
        run: Run,
        flow_iterator: FlowIterator,
        open_at: Callable[[FlowIterator, int], TaskSource],
        batch_size: int | None = None,
    ):
        super().__init__(run, {"input": flow_iterator.state(), "index": 0, "skip": 0})
        self._input, self._open_at, self._batch_size = flow_iterator, open_at, batch_size or 1
        self._stacks = batch_size is None
        self._moved = False  # whether the input may be beyond `_at`

    def _open(self, position: State) -> TaskSource:
        if self._moved or position["skip"]:
            self._input.restore(position["input"])
            for _ in range(position["skip"] * self._batch_size):
                next(self._input, None)  # the last batch may have been smaller
        self._moved = True
        return self._open_at(self._input, position["index"] + position["skip"])

    def _position(self, begin: State, chunk: Chunk, taken: int) -> State:
        return {**begin, "skip": begin["skip"] + chunk.offset_after(taken)}

    def restore(self, state: State) -> None:
        super().restore(state)
        self._moved = True

    def close(self) -> None:
        super().close()
        self._input.close()


class CopiesIterator(ParallelIterator):
    """Iterates over copies of a stream, one for each worker, whose datapoints alternate.

    A copy that has ended is skipped. The epoch ends when all have ended, or after `limit`
    datapoints.
    """

    def __init__(self, run: Run, epoch: int, copies: int, limit: int | None):
        super().__init__(run, {"copies": [None] * copies, "turn": 0, "count": 0})
        self._epoch, self._copies, self._limit = epoch, copies, limit
        self._parts: dict[int, Chunk] = {}  # of the round, by copy, in the order of their turns
        self._dealt: list[int] = []  # the copy that each row came from
        self._all_ended = False

    def _open(self, position: State) -> TaskSource:
        if self._limit is not None and position["count"] >= self._limit:
            return Indices(self._epoch, 0, 0)
        return Copies(self._epoch, position["copies"], position["turn"])

    def _fetch(self) -> tuple[State, Chunk] | None:
        count = self._at["count"]
        if self._window is None or self._all_ended or count == self._limit:
            return None
        parts = {}
        for _ in range(self._copies):
            found = self._window.next_chunk()
            if found is not None:
                task, chunk = found
                parts[task.lane or 0] = chunk
        self._parts = parts
        return self._at, self._deal(None if self._limit is None else self._limit - count)

    def _deal(self, limit: int | None) -> Chunk:
        """The datapoints of a round in turn, up to `limit` or the first error."""
        rows: list[Any] = []
        self._dealt = []
        error: BaseException | None = None
        longest = max(part.made + (part.error is not None) for part in self._parts.values())
        for i, (copy, part) in itertools.product(range(longest), self._parts.items()):
            if len(rows) == limit:
                break
            if i < part.made:
                rows.append(part.rows[i])
                self._dealt.append(copy)
            elif part.error is not None:
                error = part.error
                break
        skipped = [text for part in self._parts.values() for text in part.skipped]
        for part in self._parts.values():
            part.rows = []
        return Chunk(rows, len(rows), error=error, skipped=skipped)

    def _position(self, begin: State, chunk: Chunk, taken: int) -> State:
        if not self._parts:
            return begin
        copies = list(begin["copies"])
        dealt = self._dealt[:taken]
        for copy, part in self._parts.items():
            copies[copy] = {"input": part.before, "skip": dealt.count(copy)}
        turn = (dealt[-1] + 1) % self._copies if dealt else begin["turn"]
        return {"copies": copies, "turn": turn, "count": begin["count"] + taken}

    def _settle(self) -> None:
        super()._settle()
        self._all_ended = bool(self._parts) and all(part.ended for part in self._parts.values())
        self._parts, self._dealt = {}, []

    def restore(self, state: State) -> None:
        if len(state["copies"]) != self._copies:
            raise ValueError(
                f"expected the state of {self._copies} copies, received that of "
                f"{len(state['copies'])}: over a flow without random access the stream depends on "
                "the number of workers, so it must be the same as when the state was taken"
            )
        super().restore(state)
        self._all_ended = False
