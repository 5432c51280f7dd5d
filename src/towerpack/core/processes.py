"""Child processes: waiting for their end, describing it, and ending them with their parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator

NO_DESCRIPTOR = -1
PARENT_POLL_SECONDS = 0.5  # without a pidfd: well within the two seconds that we promise
PR_SET_PDEATHSIG = 1

_SIGNALS = {
    signal.SIGKILL: "probably out of memory, or killed by another process",
    signal.SIGSEGV: "native code crashed",
    signal.SIGBUS: "native code crashed, or a mapped file was truncated",
    signal.SIGABRT: "native code aborted",
    signal.SIGILL: "native code was compiled for another processor",
    signal.SIGFPE: "native code divided by zero",
}


def describe_exit(status: int | None) -> str:
    """An exit status in words. It is negative for a signal, as in `subprocess`.

    >>> describe_exit(-9)
    'SIGKILL: probably out of memory, or killed by another process'
    >>> describe_exit(3)
    'exit code 3'
    """
    if status is None:
        return "exit status unknown"
    if status >= 0:
        return f"exit code {status}"
    try:
        number = signal.Signals(-status)
    except ValueError:
        return f"signal {-status}"
    meaning = _SIGNALS.get(number)
    return f"{number.name}: {meaning}" if meaning else number.name


def pidfd_of(pid: int) -> int:
    """A descriptor that becomes readable when a process ends, or NO_DESCRIPTOR.

    There is none if the process is gone, or if the system has no pidfds (macOS, old Linux).
    """
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return NO_DESCRIPTOR


@contextlib.contextmanager
def own_pidfd() -> Iterator[int]:
    """The pidfd of this process, while a worker is started that waits for it."""
    descriptor = pidfd_of(os.getpid())
    try:
        yield descriptor
    finally:
        if descriptor != NO_DESCRIPTOR:
            os.close(descriptor)


def is_stopped(pid: int) -> bool:
    """Whether a signal, such as SIGSTOP, has stopped a process; only Linux tells.

    >>> is_stopped(os.getpid())
    False
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2].startswith(b"T")
    except OSError:
        return False


def is_readable(descriptor: int, seconds: float | None = 0.0) -> bool:
    """Whether a descriptor becomes readable within this time; None waits without a limit."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def end_with_parent(parent: int) -> None:
    """Starts a thread that kills this process when the process of the pidfd `parent` has ended."""
    # Read here and not in the thread: by then the parent might have ended.
    parent_pid = os.getppid()

    def wait_and_end() -> None:
        if parent == NO_DESCRIPTOR:
            while os.getppid() == parent_pid:
                time.sleep(PARENT_POLL_SECONDS)
        else:
            is_readable(parent, None)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait_and_end, name="towerpack parent watch", daemon=True).start()


def killed_with_parent(parent_pid: int) -> None:
    """Has the kernel kill this process with its parent, even while native code holds the GIL.

    It holds for the programs that this process executes, too. Only Linux can do this; elsewhere
    nothing happens. "The parent" is the thread that started this process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:  # it ended before
            os._exit(1)
