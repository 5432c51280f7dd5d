"""Threads and processes of the user's own that run beside the training."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Iterator
from typing import Any

POLL_SECONDS = 0.2  # how often a thread that waits for a queue checks whether it must stop


class StoppableThread(threading.Thread):
    """A thread that can be asked to stop. Its `run` must check `stopped()` from time to time.

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
        """Puts an object into a queue, and waits for room until `stop` is called."""
        while not self.stopped():
            with contextlib.suppress(queue.Full):
                q.put(obj, timeout=POLL_SECONDS)
                return

    def queue_get_stoppable(self, q: Any) -> Any:
        """Waits for the next object of a queue; returns None if `stop` is called."""
        while not self.stopped():
            with contextlib.suppress(queue.Empty):
                return q.get(timeout=POLL_SECONDS)
        return None


@contextlib.contextmanager
def mask_sigint() -> Iterator[bool]:
    """Makes this process, and processes that are started in the block, ignore Ctrl-C.

    Only the main thread can do that. In another thread nothing changes and False is yielded.
    """
    if threading.current_thread() is not threading.main_thread():
        yield False
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield True
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)


def start_proc_mask_signal(proc: Any) -> None:
    """Starts a `multiprocessing` process or a list of them, which will ignore Ctrl-C."""
    with mask_sigint():
        for process in proc if isinstance(proc, list | tuple) else [proc]:
            process.start()
