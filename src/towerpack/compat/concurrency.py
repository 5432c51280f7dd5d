"""Threads, processes and ordered results, as `tensorpack.utils.concurrency` has them."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from towerpack.core import logger
from towerpack.core.concurrency import StoppableThread, mask_sigint, start_proc_mask_signal
from towerpack.core.processes import PR_SET_PDEATHSIG

__all__ = [
    "DIE",
    "LoopThread",
    "OrderedContainer",
    "OrderedResultGatherProc",
    "StoppableThread",
    "enable_death_signal",
    "ensure_proc_terminate",
    "mask_sigint",
    "start_proc_mask_signal",
    "subproc_call",
]


class DIE:
    """Put into a queue, it means that nothing follows."""


class LoopThread(StoppableThread):
    """A daemon thread that calls a function repeatedly, and can be paused between two calls.

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
        """Prevents further calls; one may still be running."""
        if not self._pausable:
            raise RuntimeError("this LoopThread was created with pausable=False")
        self._may_run.clear()

    def resume(self) -> None:
        self._may_run.set()

    def stop(self) -> None:
        super().stop()
        self._may_run.set()  # a paused thread would not notice


class OrderedContainer:
    """Accepts numbered values in any order and returns them in the order of their numbers.

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
    """Reads `(number, value)` from a queue of several producers; `get` returns them in order.

    Each producer ends with `DIE`. When all have, `get` returns `DIE` after the last value. Despite
    its name it is a thread, which needs no copy of this process.

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


def ensure_proc_terminate(proc: Any) -> None:
    """Terminates a process, or a list of them, when this interpreter exits.

    It may be a process of `multiprocessing` or of `subprocess`.
    """
    for process in proc if isinstance(proc, list | tuple) else [proc]:
        atexit.register(_terminate, weakref.ref(process))


def _terminate(reference: weakref.ref[Any]) -> None:
    process = reference()
    if process is None:
        return
    running = process.poll() is None if hasattr(process, "poll") else process.is_alive()
    if running:
        process.terminate()
        (process.wait if hasattr(process, "wait") else process.join)()


def enable_death_signal(signal_number: int = signal.SIGTERM) -> None:
    """Asks the kernel to send this process a signal when its parent ends; Linux only.

    The parent is a *thread*: a process that a thread started gets the signal when that thread ends.
    """
    if sys.platform != "linux":
        logger.warning("enable_death_signal has no effect on %s", sys.platform)
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal_number)


def subproc_call(cmd: str | Sequence[str], timeout: float | None = None) -> tuple[bytes, int]:
    """Runs a command, in a shell if it is a string; returns its output and exit status.

    The output contains both streams. After `timeout` seconds the command is killed, and the status
    is -1.

    >>> subproc_call("echo hello")
    (b'hello\\n', 0)
    """
    with subprocess.Popen(
        cmd,
        shell=isinstance(cmd, str),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as child:
        try:
            output, _ = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            # All processes of the command: the shell alone would leave its children running.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            output, _ = child.communicate()
            logger.warning("command %r was killed after %s seconds", cmd, timeout)
            return output, -1
        return output, child.returncode
