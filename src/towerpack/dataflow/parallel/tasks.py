"""Tasks: made ahead of the consumer, done by any free worker, delivered in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from towerpack.dataflow.iterators import State
from towerpack.dataflow.parallel.work import Chunk, Request
from towerpack.dataflow.statistics import WorkerStatistics

# A task costs about 50 microseconds in each process. A chunk is large enough to make this
# negligible, and small enough to be made again quickly if its worker dies.
CHUNK_BYTES = 1 << 22
CHUNK_SECONDS = 0.02
MAX_CHUNK = 1024
AHEAD_BYTES = 1 << 28  # 256 MB made ahead, unless two chunks per worker are more
# If datapoints are made as fast as memory can take them, being far ahead gains nothing and loses
# the cache.
QUICK_BYTES_PER_SECOND = 2e9
QUICK_AHEAD_BYTES = 3 << 24
LATEST = 0.3  # the weight of the latest task in the estimated cost
GROWTH = 2  # a chunk is at most twice as long as the previous one: first estimates are rough


@dataclass(slots=True, eq=False)
class Task:
    """A piece of work and, once it is done, its result."""

    request: Request
    lane: int | None = None  # the one worker that can do it; None: any
    state: str | None = None  # of a stream: its position at the beginning, as JSON
    position: State | None = None  # of the iterator, before the first datapoint
    done: bool = False
    chunk: Chunk | None = None  # once it is done
    load: Callable[[], None] | None = None  # fetches the rows of a chunk that lie elsewhere
    tail: BaseException | None = None  # an error that follows its datapoints
    deaths: int = 0  # how many workers died while they did it


class Executor(Protocol):
    """Does tasks: in this process, in threads, in processes."""

    workers: int
    ahead: Window | None  # whose tasks were left to the executor

    def has_room(self, lane: int | None) -> bool:
        """Whether another task would be begun soon."""
        ...

    def submit(self, task: Task) -> None: ...

    def wait(self) -> None:
        """Returns when at least one more task is done: it has its chunk."""
        ...

    def statistics(self) -> list[WorkerStatistics]: ...

    def close(self) -> None: ...


class TaskSource(Protocol):
    """Makes the tasks of one epoch in the order of their datapoints."""

    def lane(self) -> int | None:
        """The worker that the next task will need; None: any."""
        ...

    def more(self, count: int) -> Task | None:
        """The next task, of up to `count` datapoints; None at the end."""
        ...


class Window:
    """The tasks in progress, oldest first.

    With the source of a `following` epoch, its tasks are begun when this epoch has no more.
    `leave_ahead` passes them to the executor, from which the window of that epoch takes them.
    """

    def __init__(
        self,
        executor: Executor,
        source: TaskSource,
        prefetch: int,
        stacked: int | None = None,
        following: TaskSource | None = None,
    ):
        self._executor, self._source, self._prefetch = executor, source, prefetch
        self._following = following
        self._max_chunk = MAX_CHUNK if executor.workers else 1
        self._tasks: deque[Task] = deque()
        self._early: deque[Task] = deque()  # of the following epoch
        self._rows = 0  # requested and not yet delivered
        self._stacked = stacked  # the size of the batches that tasks make
        self._chunk = stacked or 1  # the number of datapoints of the next task
        self._row_bytes = self._row_seconds = 0.0  # recent averages
        self._ahead = (max(1, executor.workers) + 1) * self._chunk  # how many may be requested
        self._exhausted = False
        self.looks = self.fill = 0.0  # for the mean fill

    def begin(self, first: Task) -> None:
        """Begins with this task of the source, or with those that the previous epoch has begun."""
        before, self._executor.ahead = self._executor.ahead, None
        if before is not None:
            if before._is_before(first.request, self._stacked):
                self._tasks, self._source = before._early, before._following or self._source
                self._rows = sum(task.request.count for task in self._tasks)
                self._chunk, self._ahead = before._chunk, before._ahead
                self._row_bytes, self._row_seconds = before._row_bytes, before._row_seconds
                return
            before._discard()
        self._add(first, self._tasks)

    def _is_before(self, first: Request, stacked: int | None) -> bool:
        """Whether the epoch that was begun early is the one with this first task."""
        if self._tasks or stacked != self._stacked:
            return False
        early = self._early[0].request
        return (early.epoch, early.start) == (first.epoch, first.start)

    def in_progress(self) -> list[Task]:
        return [*self._tasks, *self._early]

    def _discard(self) -> None:
        """Waits for tasks that are not needed, and releases their results."""
        for task in self.in_progress():
            while not task.done:
                self._executor.wait()
            if task.load is not None:
                task.load()

    def leave_ahead(self) -> None:
        """Leaves the tasks in progress to the executor: those of the next epoch if this one has
        ended, or those that no consumer needs."""
        self._executor.ahead = self if self.in_progress() else None

    def _add(self, task: Task, queue: deque[Task]) -> None:
        task.request.stack = self._stacked is not None
        queue.append(task)
        self._rows += task.request.count
        if not task.done:
            self._executor.submit(task)

    def next_chunk(self) -> tuple[Task, Chunk] | None:
        """The next datapoints in order and the task that made them, or None at the end."""
        self._refill()
        if not self._tasks:
            return None
        head = self._tasks[0]
        self._look()
        while not head.done:
            self._executor.wait()
            self._refill()
        self._tasks.popleft()
        self._rows -= head.request.count
        chunk = head.chunk or Chunk([])
        if chunk.busy:
            self._learn(max(1, head.request.count), chunk.size, chunk.busy)
        if head.load is not None:
            head.load()
        self._refill()  # so that the workers continue while the consumer is busy
        return head, chunk

    def _refill(self) -> None:
        while (source := self._following if self._exhausted else self._source) is not None:
            if self._rows and self._rows + self._chunk > self._ahead:
                return
            if not self._executor.has_room(source.lane()):
                return
            task = source.more(self._chunk)
            if task is not None:
                self._add(task, self._early if self._exhausted else self._tasks)
            elif self._exhausted:
                return  # all tasks of the next epoch are in progress
            else:
                self._exhausted = True

    def _learn(self, count: int, size: int, nanoseconds: int) -> None:
        """Adapts the length and the number of the next tasks to the cost of this one."""
        weight = LATEST if self._row_bytes else 1.0
        self._row_bytes += weight * (max(1.0, size / count) - self._row_bytes)
        self._row_seconds += weight * (max(1.0, nanoseconds / count) / 1e9 - self._row_seconds)
        if not self._stacked:
            chunk = int(min(CHUNK_BYTES / self._row_bytes, CHUNK_SECONDS / self._row_seconds))
            self._chunk = max(1, min(chunk, GROWTH * self._chunk, self._max_chunk))
        quick = self._row_bytes > QUICK_BYTES_PER_SECOND * self._row_seconds
        fit = int((QUICK_AHEAD_BYTES if quick else AHEAD_BYTES) / self._row_bytes)
        workers = max(1, self._executor.workers)
        # One for each worker and one that is ready; if they fit, a second for each worker.
        least = (workers + 1) * self._chunk
        self._ahead = max(least, min(self._prefetch, fit), min(2 * workers * self._chunk, fit))

    def _look(self) -> None:
        self.looks += 1
        self.fill += sum(task.done for task in self._tasks) / len(self._tasks)
