"""Threads that can be asked to stop, and results put back in order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

POLL_SECONDS = 0.2  # how often a thread that waits for a queue looks whether it is to stop


class DIE:
    """What is put into a queue to say that nothing follows."""


class StoppableThread(threading.Thread):
    """A thread that can be asked to stop; it looks at `stopped()` where that is convenient.

    >>> class Counting(StoppableThread):
    ...     count = 0
    ...     def run(self):
    ...         while not self.stopped():
    ...             self.count += 1
    >>> thread = Counting()
    >>> thread.start()
    >>> thread.stop()
    >>> thread.join()
    """

    def __init__(self, *args: Any, evt: threading.Event | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._stop_event = evt or threading.Event()

    def stop(self) -> None:
        self._stop_event.set()

    def stopped(self) -> bool:
        return self._stop_event.is_set()

    def queue_put_stoppable(self, q: Any, obj: Any) -> None:
        """Puts an object into a queue, waiting for room until `stop` is called."""
        while not self.stopped():
            try:
                q.put(obj, timeout=POLL_SECONDS)
                return
            except queue.Full:
                continue

    def queue_get_stoppable(self, q: Any) -> Any:
        """The next object of a queue, waited for until `stop` is called; None after that."""
        while not self.stopped():
            try:
                return q.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
        return None


class LoopThread(StoppableThread):
    """A daemon thread that calls a function again and again, and can be paused between two calls.

    >>> calls = []
    >>> thread = LoopThread(lambda: calls.append(1))
    >>> thread.start()
    >>> thread.pause()
    >>> thread.resume()
    >>> thread.stop()
    >>> thread.join()
    """

    def __init__(self, func: Callable[[], Any], pausable: bool = True):
        super().__init__(daemon=True)
        self._func, self._pausable = func, pausable
        self._may_run = threading.Event()
        self._may_run.set()

    def run(self) -> None:
        while not self.stopped():
            self._may_run.wait()
            if not self.stopped():
                self._func()

    def pause(self) -> None:
        """No call begins after this; one may still be under way."""
        if not self._pausable:
            raise RuntimeError("this LoopThread was made with pausable=False")
        self._may_run.clear()

    def resume(self) -> None:
        self._may_run.set()

    def stop(self) -> None:
        super().stop()
        self._may_run.set()  # one that is paused would never see it


class OrderedContainer:
    """Takes numbered values in any order and gives them back in that of their numbers.

    >>> container = OrderedContainer()
    >>> container.put(1, "b")
    >>> container.has_next()
    False
    >>> container.put(0, "a")
    >>> container.get(), container.get()
    ((0, 'a'), (1, 'b'))
    """

    def __init__(self, start: int = 0):
        self._waiting: dict[int, Any] = {}
        self._next = start

    def put(self, rank: int, val: Any) -> None:
        if rank < self._next or rank in self._waiting:
            raise ValueError(f"expected each number once, received {rank} again")
        self._waiting[rank] = val

    def has_next(self) -> bool:
        return self._next in self._waiting

    def get(self) -> tuple[int, Any]:
        """The next number and its value; raises LookupError if it is not there yet."""
        if not self.has_next():
            raise LookupError(f"number {self._next} has not been put in yet")
        rank, self._next = self._next, self._next + 1
        return rank, self._waiting.pop(rank)


class OrderedResultGatherProc(threading.Thread):
    """Reads `(number, value)` from a queue that several producers fill; `get` gives them in order.

    Each producer ends with `DIE`; when all have, `get` gives `DIE` too, after the last value. By
    its name it was a process; a thread does the same without a copy of this one.

    >>> results = queue.Queue()
    >>> for item in [(1, "b"), (0, "a"), DIE]:
    ...     results.put(item)
    >>> gather = OrderedResultGatherProc(results, nr_producer=1)
    >>> gather.start()
    >>> gather.get(), gather.get(), gather.get() is DIE
    ((0, 'a'), (1, 'b'), True)
    """

    def __init__(self, data_queue: Any, nr_producer: int, start: int = 0):
        super().__init__(daemon=True)
        self._data, self._producers = data_queue, nr_producer
        self._ordered = OrderedContainer(start)
        self.result_queue: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def run(self) -> None:
        left = self._producers
        while left:
            task = self._data.get()
            if task is DIE or isinstance(task, DIE):
                left -= 1
                continue
            self._ordered.put(*task)
            while self._ordered.has_next():
                self.result_queue.put(self._ordered.get())
        self.result_queue.put(DIE)

    def get(self) -> Any:
        return self.result_queue.get()
