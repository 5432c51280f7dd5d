"""Tasks in order: made ahead of the consumer, done by whoever is free, delivered in their order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from towerpack.dataflow.base import State
from towerpack.dataflow.parallel.work import Request
from towerpack.dataflow.statistics import WorkerStatistics

# A task costs some 50 microseconds of everybody's time. A chunk is large enough to make that
# vanish, and small enough that it is quickly made again should its worker die.
CHUNK_BYTES = 1 << 22
CHUNK_SECONDS = 0.02
MAX_CHUNK = 1024
AHEAD_BYTES = 1 << 28  # 256 MB: what may lie ready, unless two chunks for each worker are more
# Where datapoints are made as fast as memory takes them, to be far ahead gains nothing, and costs
# what a cache would have saved.
QUICK_BYTES_PER_SECOND = 2e9
QUICK_AHEAD_BYTES = 3 << 24
LATEST = 0.3  # the weight of the latest task in what tasks are thought to cost
GROWTH = 2  # a chunk is at most twice as long as the last: the first estimates are rough


@dataclass(slots=True)
class Chunk:
    """Datapoints as the consumer gets them."""

    rows: list[Any]
    made: int = 0  # dropped ones included
    dropped: list[int] = field(default_factory=list)  # offsets of those
    error: BaseException | None = None  # to be raised after the rows
    skipped: list[str] = field(default_factory=list)
    before: State | None = None  # of a stream: its position before these
    ended: bool = False
    stacked: bool = False  # `rows` is one batch of all that were asked for
    kept: int = 0  # how many the rows were, before they were handed out
    busy: int = 0  # nanoseconds that a worker spent on them

    def __post_init__(self) -> None:
        self.kept = len(self.rows)


@dataclass(slots=True, eq=False)
class Task:
    """A piece of work and, once it is done, what came of it."""

    request: Request
    lane: int | None = None  # the one worker that can do it; None: any
    state: str | None = None  # of a stream: JSON of where it is to begin
    position: State | None = None  # where the iterator stands when its first datapoint is next
    done: bool = False
    chunk: Chunk | None = None  # of a task that needed no worker
    tail: BaseException | None = None  # an error that comes after its datapoints
    deaths: int = 0  # workers that died of it
    reply: Any = None  # the executor's own


@dataclass(slots=True)
class Ahead:
    """Tasks of the next pass, begun when a pass had no more, so that no worker has to wait.

    Without a source they are those that a pass which was closed midway has left.
    """

    tasks: deque[Task]
    source: TaskSource | None  # of those that follow
    window: Window  # that began them, with what it knows of their cost


class Executor(Protocol):
    """Does tasks: in this process, in threads, in processes."""

    workers: int
    ahead: Ahead | None

    def has_room(self, lane: int | None) -> bool:
        """Whether one more task would be begun soon."""
        ...

    def submit(self, task: Task) -> None: ...

    def wait(self) -> None:
        """Returns when at least one more task is done."""
        ...

    def take(self, task: Task) -> Chunk:
        """What came of a task that is done; once."""
        ...

    def cost(self, task: Task) -> tuple[int, int]:
        """Bytes and nanoseconds of a task that is done."""
        ...

    def statistics(self) -> list[WorkerStatistics]: ...

    def close(self) -> None: ...


class TaskSource(Protocol):
    """Makes the tasks of one pass in the order of their datapoints."""

    def lane(self) -> int | None:
        """The worker that the next task will need; None: any."""
        ...

    def more(self, count: int) -> Task | None:
        """The next task, of `count` datapoints if there are so many; None at the end."""
        ...


class Window:
    """The tasks under way, oldest first.

    With the source of a `following` pass, its tasks are begun as soon as this one has no more:
    `leave_ahead` hands them to the executor, and the window of that pass takes them from there.
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
        self._early: deque[Task] = deque()  # of the following pass
        self._rows = 0  # asked for and not yet delivered
        self._stacked = stacked  # the size of the batches that tasks are to give
        self._chunk = stacked or 1  # datapoints of the next task
        self._row_bytes = self._row_seconds = 0.0  # lately
        self._ahead = (max(1, executor.workers) + 1) * self._chunk  # how many may be asked for
        self._exhausted = False
        self.looks = self.fill = 0.0  # for the mean fill

    def begin(self, first: Task) -> None:
        """Begins with this task of the source, or with those that the pass before has begun."""
        ahead, self._executor.ahead = self._executor.ahead, None
        if ahead is not None:
            same = ahead.window._stacked == self._stacked
            if ahead.source is not None and same and _same_place(ahead.tasks[0], first):
                self._adopt(ahead, ahead.source)
                return
            self._discard(ahead)
        self._add(first, self._tasks)

    def _adopt(self, ahead: Ahead, source: TaskSource) -> None:
        before = ahead.window
        self._tasks, self._source = ahead.tasks, source
        self._rows = sum(task.request.count for task in ahead.tasks)
        self._chunk, self._ahead = before._chunk, before._ahead
        self._row_bytes, self._row_seconds = before._row_bytes, before._row_seconds

    def _discard(self, ahead: Ahead) -> None:
        """Waits for tasks that nobody wants: what they have made is given back."""
        for task in ahead.tasks:
            while not task.done:
                self._executor.wait()
            if task.chunk is None:
                self._executor.take(task)

    def leave_ahead(self) -> None:
        """Leaves the tasks under way with the executor: those of the next pass, if this one has
        ended, or those that nothing will ask for."""
        if self._tasks:
            self._executor.ahead = Ahead(deque([*self._tasks, *self._early]), None, self)
        elif self._early:
            self._executor.ahead = Ahead(self._early, self._following, self)

    def _add(self, task: Task, queue: deque[Task]) -> None:
        task.request.stack = self._stacked is not None
        queue.append(task)
        self._rows += task.request.count
        if not task.done:
            self._executor.submit(task)

    def next_chunk(self) -> tuple[Task, Chunk] | None:
        """The next datapoints in order and the task they were made by, or None at the end."""
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
        chunk = head.chunk
        if chunk is None:
            size, nanoseconds = self._executor.cost(head)
            self._learn(max(1, head.request.count), size, nanoseconds)
            chunk = self._executor.take(head)
            chunk.busy = nanoseconds
        self._refill()  # so that the workers go on while the consumer is away
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
                return  # all of the next pass is under way
            else:
                self._exhausted = True

    def _learn(self, count: int, size: int, nanoseconds: int) -> None:
        """From what a task cost, how long the next ones are to be, and how many of them."""
        weight = LATEST if self._row_bytes else 1.0
        self._row_bytes += weight * (max(1.0, size / count) - self._row_bytes)
        self._row_seconds += weight * (max(1.0, nanoseconds / count) / 1e9 - self._row_seconds)
        if not self._stacked:
            chunk = int(min(CHUNK_BYTES / self._row_bytes, CHUNK_SECONDS / self._row_seconds))
            self._chunk = max(1, min(chunk, GROWTH * self._chunk, self._max_chunk))
        quick = self._row_bytes > QUICK_BYTES_PER_SECOND * self._row_seconds
        fit = int((QUICK_AHEAD_BYTES if quick else AHEAD_BYTES) / self._row_bytes)
        workers = max(1, self._executor.workers)
        # One for each and one that is ready; where there is room, a second for each at hand.
        least = (workers + 1) * self._chunk
        self._ahead = max(least, min(self._prefetch, fit), min(2 * workers * self._chunk, fit))

    def _look(self) -> None:
        self.looks += 1
        self.fill += sum(task.done for task in self._tasks) / len(self._tasks)


def _same_place(one: Task, other: Task) -> bool:
    a, b = one.request, other.request
    return (a.epoch, a.start) == (b.epoch, b.start)
