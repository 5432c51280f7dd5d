"""Executors in this process: threads, and none for `num_proc=0`, where a debugger can follow."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue

import numpy as np

from towerpack.core import logger, tree
from towerpack.core.prefetch import TASKS_PER_THREAD
from towerpack.dataflow.parallel.tasks import Task, Window
from towerpack.dataflow.parallel.work import Chunk, StreamWork, Work
from towerpack.dataflow.statistics import WorkerStatistics

Tasks = SimpleQueue[Task | None]
EXIT_SECONDS = 2.0  # a thread cannot be killed: it ends when its function returns


def _perform(work: Work, task: Task) -> Chunk:
    begun = time.perf_counter_ns()
    if task.state is not None and isinstance(work, StreamWork):
        work.restore(task.request.epoch, task.state)
    chunk = work.run(task.request, np.empty)
    chunk.busy = time.perf_counter_ns() - begun
    chunk.size = tree.size_in_bytes(chunk.rows[:1]) * len(chunk.rows)
    return chunk


class InlineExecutor:
    """Does a task when the consumer waits for it, one at a time."""

    workers = 0
    ahead: Window | None = None

    def __init__(self, work: Work):
        self._work = work
        self._queue: deque[Task] = deque()
        self._busy = self._datapoints = 0  # nanoseconds, and how many datapoints

    def has_room(self, lane: int | None) -> bool:
        return not self._queue

    def submit(self, task: Task) -> None:
        self._queue.append(task)

    def wait(self) -> None:
        task = self._queue.popleft()
        task.chunk, task.done = _perform(self._work, task), True
        self._busy += task.chunk.busy
        self._datapoints += task.chunk.made

    def statistics(self) -> list[WorkerStatistics]:
        return [WorkerStatistics(0, None, self._busy / 1e9, 0.0, 0, self._datapoints)]

    def close(self) -> None:
        self._queue.clear()
        if isinstance(self._work, StreamWork):
            self._work.close()


class ThreadExecutor:
    """Runs tasks in threads, with one work object for each, which may be the same one."""

    ahead: Window | None = None

    def __init__(self, works: Sequence[Work], name: str):
        self.workers, self.name = len(works), name
        # Tasks of a stream go to one thread; all others to any free thread.
        self._lanes = len(works) if isinstance(works[0], StreamWork) else 1
        self._queues = [Tasks() for _ in range(self._lanes)]
        self._waiting = [0] * self._lanes  # tasks not yet done
        self._finished: SimpleQueue[Task] = SimpleQueue()
        self._threads = [
            _Thread(work, self._queues[number % self._lanes], self._finished, f"{name} {number}")
            for number, work in enumerate(works)
        ]
        for thread in self._threads:
            thread.start()

    def has_room(self, lane: int | None) -> bool:
        return self._waiting[lane or 0] < TASKS_PER_THREAD * self.workers // self._lanes

    def submit(self, task: Task) -> None:
        self._waiting[task.lane or 0] += 1
        self._queues[task.lane or 0].put(task)

    def wait(self) -> None:
        task = self._finished.get()
        self._waiting[task.lane or 0] -= 1
        task.done = True

    def statistics(self) -> list[WorkerStatistics]:
        return [
            WorkerStatistics(i, None, thread.busy / 1e9, thread.idle / 1e9, 0, thread.datapoints)
            for i, thread in enumerate(self._threads)
        ]

    def close(self) -> None:
        """Ends the threads, each as soon as its function returns."""
        for thread in self._threads:
            thread.ending = True
        for queue in self._queues:
            for _ in self._threads:
                queue.put(None)
        deadline = time.monotonic() + EXIT_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
                if thread.is_alive():
                    logger.warning(
                        "%s still runs its function and ends when it returns", thread.name
                    )


class _Thread(threading.Thread):
    def __init__(self, work: Work, tasks: Tasks, finished: SimpleQueue[Task], name: str):
        super().__init__(name=name, daemon=True)
        self._work, self._tasks, self._finished = work, tasks, finished
        self.ending = False
        self.busy = self.idle = self.datapoints = 0  # nanoseconds, and how many datapoints

    def run(self) -> None:
        since = time.perf_counter_ns()
        while (task := self._tasks.get()) is not None and not self.ending:
            self.idle += time.perf_counter_ns() - since
            try:
                task.chunk = _perform(self._work, task)
            except BaseException as error:  # noqa: BLE001 (the consumer gets it)
                task.chunk = Chunk([], error=error)
            since = time.perf_counter_ns()
            self.busy += task.chunk.busy
            self.datapoints += task.chunk.made
            self._finished.put(task)
        if isinstance(self._work, StreamWork):
            self._work.close()
