"""The work of workers in this process: for `num_proc=0`, where a debugger can follow it."""

from __future__ import annotations

import time
from collections import deque

import numpy as np

from towerpack.dataflow.parallel.tasks import Ahead, Chunk, Task
from towerpack.dataflow.parallel.work import Result, StreamWork, Work
from towerpack.dataflow.statistics import WorkerStatistics


def chunk_of(result: Result, task: Task) -> Chunk:
    """A result made in this process, as the consumer gets it."""
    return Chunk(
        rows=[row for row in result.rows if row is not None],
        made=task.request.count if result.stacked else len(result.rows),
        dropped=[i for i, row in enumerate(result.rows) if row is None],
        error=result.error,
        skipped=result.skipped,
        before=result.before,
        ended=result.ended,
        stacked=result.stacked,
    )


class InlineExecutor:
    """Does a task when it is waited for, one at a time."""

    workers = 0
    ahead: Ahead | None = None

    def __init__(self, work: Work):
        self._work = work
        self._queue: deque[Task] = deque()
        self._busy = self._datapoints = 0  # nanoseconds, and what they were spent on

    def has_room(self, lane: int | None) -> bool:
        return not self._queue

    def submit(self, task: Task) -> None:
        self._queue.append(task)

    def wait(self) -> None:
        task = self._queue.popleft()
        begun = time.perf_counter_ns()
        if task.state is not None and isinstance(self._work, StreamWork):
            self._work.restore(task.request.epoch, task.state)
        task.reply = self._work.run(task.request, np.empty)
        self._busy += time.perf_counter_ns() - begun
        self._datapoints += len(task.reply.rows)
        task.done = True

    def take(self, task: Task) -> Chunk:
        result, task.reply = task.reply, None
        return chunk_of(result, task)

    def cost(self, task: Task) -> tuple[int, int]:
        return 1, 1

    def statistics(self) -> list[WorkerStatistics]:
        return [WorkerStatistics(0, None, self._busy / 1e9, 0.0, 0, self._datapoints)]

    def close(self) -> None:
        self._queue.clear()
        if isinstance(self._work, StreamWork):
            self._work.close()
