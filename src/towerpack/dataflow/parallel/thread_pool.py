"""Threads that do tasks: for functions that leave the interpreter lock, such as decoding images."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue

import numpy as np

from towerpack.core import logger, tree
from towerpack.dataflow.parallel.inline import chunk_of
from towerpack.dataflow.parallel.tasks import Ahead, Chunk, Task
from towerpack.dataflow.parallel.work import Result, StreamWork, Work
from towerpack.dataflow.statistics import WorkerStatistics

Tasks = SimpleQueue[Task | None]
DEPTH = 3  # tasks at hand for each thread
EXIT_SECONDS = 2.0  # a thread cannot be killed: it ends when the function it is in returns


class ThreadExecutor:
    """Runs tasks in threads, one work object for each: they share it, or have each their own."""

    ahead: Ahead | None = None

    def __init__(self, works: Sequence[Work], name: str):
        self.workers, self.name = len(works), name
        # Tasks of a stream go to one thread; all others to whoever is free.
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
        return self._waiting[lane or 0] < DEPTH * self.workers // self._lanes

    def submit(self, task: Task) -> None:
        self._waiting[task.lane or 0] += 1
        self._queues[task.lane or 0].put(task)

    def wait(self) -> None:
        task = self._finished.get()
        self._waiting[task.lane or 0] -= 1
        task.done = True

    def take(self, task: Task) -> Chunk:
        result, _ = task.reply
        task.reply = None
        return chunk_of(result, task)

    def cost(self, task: Task) -> tuple[int, int]:
        result, nanoseconds = task.reply
        return tree.size_in_bytes(result.rows[:1]) * len(result.rows), nanoseconds

    def statistics(self) -> list[WorkerStatistics]:
        return [
            WorkerStatistics(i, None, thread.busy / 1e9, thread.idle / 1e9, 0, thread.datapoints)
            for i, thread in enumerate(self._threads)
        ]

    def close(self) -> None:
        """Ends the threads, each as soon as the function it is in returns."""
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
                    logger.warning("%s is still in its function and ends after it", thread.name)


class _Thread(threading.Thread):
    def __init__(self, work: Work, tasks: Tasks, finished: SimpleQueue[Task], name: str):
        super().__init__(name=name, daemon=True)
        self._work, self._tasks, self._finished = work, tasks, finished
        self.ending = False
        self.busy = self.idle = self.datapoints = 0  # nanoseconds, and what they were spent on

    def run(self) -> None:
        since = time.perf_counter_ns()
        while (task := self._tasks.get()) is not None and not self.ending:
            begun = time.perf_counter_ns()
            result = self._result(task)
            now = time.perf_counter_ns()
            self.idle, self.busy = self.idle + begun - since, self.busy + now - begun
            self.datapoints += len(result.rows)
            since = now
            task.reply = result, now - begun
            self._finished.put(task)
        if isinstance(self._work, StreamWork):
            self._work.close()

    def _result(self, task: Task) -> Result:
        try:
            if task.state is not None and isinstance(self._work, StreamWork):
                self._work.restore(task.request.epoch, task.state)
            return self._work.run(task.request, np.empty)
        except BaseException as error:  # noqa: BLE001 (the consumer gets it)
            return Result([], error=error)
