"""Starts a worker process, waits for it, ends it, and describes how it died.

| start method | how a worker is started | |
| --- | --- | --- |
| forkserver | forked from a small server process (`forkserver`) | the default: milliseconds |
| spawn | a fresh interpreter | slowest, shares nothing |
| fork | a fork of this process | nothing is pickled; refused where it could hang |

None of them imports the user's main module, so a script without `if __name__ == '__main__'`, a
notebook cell and `python -c` work with each. Every worker ends when this process does, also if this
process is killed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from towerpack.core.processes import (
    NO_DESCRIPTOR,
    describe_exit,
    is_readable,
    own_pidfd,
    pidfd_of,
)
from towerpack.dataflow.workers import startup
from towerpack.dataflow.workers.forkserver import RUNNING, server, start_python, stop_server

START_METHODS = ("forkserver", "spawn", "fork")
# Libraries with their own threads and device handles: sooner or later a fork of them hangs.
UNFORKABLE = ("tensorflow", "jax", "jaxlib")
EXIT_SECONDS = 5.0  # for the kernel to end a killed process on an overloaded machine


class WorkerDied(RuntimeError):
    """A worker process died. The message says how, which worker, and what it was working on."""

    def __init__(self, message: str, worker: int = -1, status: int | None = None):
        super().__init__(message)
        self.worker, self.status = worker, status


def check_start_method(method: str | None) -> str:
    """The method, or the default for None; raises ValueError for an unknown one."""
    if method is None:
        return "forkserver" if hasattr(os, "fork") else "spawn"
    if method not in START_METHODS:
        raise ValueError(
            f"expected a start method of {', '.join(START_METHODS)}, received {method!r}"
        )
    return method


class WorkerProcess:
    """A worker process that calls `entry`, which is a `startup.Begin`; this end of its channel.

    `packed` is the descriptor of `obj` packed by `payload.pack`: pack once, start often. Start
    method 'fork' needs none. The descriptors stay open in this process. `owner` is what messages
    call the stage or predictor that the worker belongs to.

    `sentinel` is a descriptor that is readable once the process has ended, or NO_DESCRIPTOR.
    """

    def __init__(
        self,
        number: int,
        owner: str,
        entry: str,
        obj: Any,
        packed: int,
        start_method: str,
        descriptors: Sequence[int] = (),
    ):
        self.number, self.owner = number, owner
        self.status: int | None = None
        self.server_pid: int | None = None  # of the fork server that took it along when it died
        self.ended = False
        self._parent = os.getpid()
        self.channel, theirs = socket.socketpair()
        _channels.add(self.channel)
        everything = [packed, theirs.fileno(), *descriptors]
        try:
            if start_method == "fork":
                self.pid = _fork(entry, number, obj, everything[1:])
                self._reap = functools.partial(_status_of_child, self.pid)
            elif start_method == "spawn":
                with own_pidfd() as parent:
                    arguments = [entry, number, parent, *everything]
                    process = start_python("startup", [parent, *everything], arguments)
                self.pid, self._reap = process.pid, process.poll
            else:
                self.pid = self._fork_from_server(entry, everything)
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()
        self.sentinel = pidfd_of(self.pid)

    _reap: Callable[[], int | None]
    """The exit status, or None while it runs; raises ConnectionError if it cannot be known."""

    def _fork_from_server(self, entry: str, descriptors: list[int]) -> int:
        request = "fork", entry, self.number
        current = server()
        try:
            pid = current.request(*request, descriptors=descriptors)
        except ConnectionError:  # the server was killed
            stop_server(current)
            current = server()
            pid = current.request(*request, descriptors=descriptors)

        def status() -> int | None:
            try:
                found = current.request("status", pid)
            except OSError as error:  # its children died with it
                self.server_pid = current.process.pid
                raise ConnectionResetError("the fork server has ended") from error
            return None if found == RUNNING else found

        self._reap = status
        return pid

    def __str__(self) -> str:
        return f"worker {self.number} (pid {self.pid}) of {self.owner}"

    def poll(self) -> bool:
        """Whether the process has ended. `status` is then its exit status, or None if unknown.

        It is negative for a signal, as in `subprocess`.
        """
        if not self.ended and (self.sentinel == NO_DESCRIPTOR or is_readable(self.sentinel)):
            try:
                self.status = self._reap()
                self.ended = self.status is not None
            except ConnectionError:
                self.ended = True
        return self.ended

    def wait(self, seconds: float) -> bool:
        """Waits for the process to end; returns whether it did."""
        deadline = time.monotonic() + seconds
        while not self.poll():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self.sentinel == NO_DESCRIPTOR:
                time.sleep(0.01)
            else:
                is_readable(self.sentinel, left)
        return True

    def is_stopped(self) -> bool:
        """Whether the process is stopped (SIGSTOP); False if the system does not tell."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                # After the name, which may itself contain spaces and parentheses.
                return file.read().rpartition(b") ")[2][:1] == b"T"
        except OSError:
            return False

    def kill(self) -> None:
        """Sends SIGKILL, to this process and to no other that may have its pid by now."""
        if self._parent != os.getpid() or self.poll():
            return
        with contextlib.suppress(ProcessLookupError):
            if self.sentinel == NO_DESCRIPTOR:
                os.kill(self.pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(self.sentinel, signal.SIGKILL)

    def end(self, seconds: float) -> None:
        """Closes the channel, kills the process unless it ends within this time, and forgets it."""
        self.channel.close()
        if self._parent == os.getpid():
            self.wait(seconds)
            self.kill()
            self.wait(EXIT_SECONDS)
        if self.sentinel != NO_DESCRIPTOR:
            os.close(self.sentinel)
            self.sentinel = NO_DESCRIPTOR

    def death(self, task: str, fault: str | None = None) -> WorkerDied:
        """The error that describes how this process, which has ended, died during a task.

        `fault` is the reason if it was killed on purpose.
        """
        if fault is not None:
            how = f"was killed because {fault},"
        elif self.server_pid is not None:
            how = "died (its fork server was killed)"
        else:
            how = f"died ({describe_exit(self.status)})"
        return WorkerDied(f"{self} {how} while {task}", self.number, self.status)


# This process's ends of all channels, which a fork must not hold open.
_channels: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _fork(entry: str, number: int, obj: Any, descriptors: list[int]) -> int:
    check_fork_is_safe()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # it is closed
            stream.flush()  # or the worker would print the content of the buffers again
    with own_pidfd() as parent:
        pid = os.fork()
        if pid == 0:
            for channel in list(_channels):
                channel.close()
            startup.run(lambda: startup.call(entry, lambda: obj, number, descriptors), parent)
    return pid


def _status_of_child(pid: int) -> int | None:
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError as error:
        raise ConnectionResetError("other code in this process has reaped it") from error
    return os.waitstatus_to_exitcode(status) if ended else None


def check_fork_is_safe() -> None:
    """Raises RuntimeError if a fork of this process could hang."""
    loaded = [name for name in UNFORKABLE if name in sys.modules]
    if loaded:
        raise RuntimeError(
            f"start_method='fork' after {loaded[0]} was loaded: a fork of its threads hangs. Use "
            "start_method='forkserver' (the default), or fork before it is imported"
        )
    others = [
        thread.name for thread in threading.enumerate() if thread is not threading.current_thread()
    ]
    if others:
        raise RuntimeError(
            f"start_method='fork' while other threads run ({', '.join(others)}): a lock that one "
            "of them holds would stay locked in the worker. Use start_method='forkserver' (the "
            "default)"
        )
