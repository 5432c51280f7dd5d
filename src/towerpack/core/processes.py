"""Processes: starting and ending them, how one ended, how it is doing."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from towerpack.core import logger

_MEANINGS = {
    signal.SIGKILL: "probably out of memory, or killed by someone",
    signal.SIGSEGV: "native code crashed",
    signal.SIGBUS: "native code crashed, or a mapped file was cut short",
    signal.SIGABRT: "native code gave up",
    signal.SIGILL: "native code for another processor",
    signal.SIGFPE: "native code divided by zero",
}


def describe_exit(status: int | None) -> str:
    """An exit status, negative for a signal as in `subprocess`, in words.

    >>> describe_exit(-9)
    'SIGKILL: probably out of memory, or killed by someone'
    >>> describe_exit(3)
    'exit code 3'
    """
    if status is None:
        return "gone, exit status unknown"
    if status >= 0:
        return f"exit code {status}"
    try:
        number = signal.Signals(-status)
    except ValueError:
        return f"signal {-status}"
    meaning = _MEANINGS.get(number)
    return f"{number.name}: {meaning}" if meaning else number.name


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by SIGSTOP or SIGTSTP; False where that cannot be seen."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # After the name, which may itself hold spaces and parentheses.
            return file.read().rpartition(b") ")[2][:1] == b"T"
    except OSError:
        return False


def private_memory(pid: int) -> int:
    """Bytes of memory that belong to a process alone; 0 where that cannot be seen."""
    total = 0
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Private_"):
                    total += int(line.split()[1]) * 1024
    except OSError:
        return 0
    return total


@contextlib.contextmanager
def mask_sigint() -> Iterator[bool]:
    """Ctrl-C is ignored inside, also by processes started there; yields whether it is.

    Only the main thread can do that; in another one this does nothing and yields False.
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
    """Starts a `multiprocessing` process, or a list of them; Ctrl-C does not reach them."""
    with mask_sigint():
        for process in proc if isinstance(proc, list | tuple) else [proc]:
            process.start()


def ensure_proc_terminate(proc: Any) -> None:
    """Sees to it that a process, or a list of them, ends with this one.

    It may be of `multiprocessing` or `subprocess`. If it still runs when this interpreter exits, it
    is terminated.
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


PR_SET_PDEATHSIG = 1


def enable_death_signal(signal_number: int = signal.SIGTERM) -> None:
    """Asks the kernel to send this process a signal when its parent ends; Linux only.

    It is the parent *thread* that counts: a process started by a thread gets the signal when that
    thread ends.
    """
    if sys.platform != "linux":
        logger.warning("enable_death_signal does nothing on %s", sys.platform)
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal_number)


def subproc_call(cmd: str | Sequence[str], timeout: float | None = None) -> tuple[bytes, int]:
    """Runs a command, by the shell if it is a string; returns its output and exit status.

    Both streams are in the output. After `timeout` seconds it is killed, and the status is -1.

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
            # All of the command's processes: the shell alone would leave its children running.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            output, _ = child.communicate()
            logger.warning("command %r was killed after %s seconds", cmd, timeout)
            return output, -1
        return output, child.returncode
