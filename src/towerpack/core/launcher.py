"""Worker processes by three start methods, none of which imports the user's main module.

| method | how | |
| --- | --- | --- |
| forkserver | forked from a small server process (`core.forkserver`) | the default: milliseconds |
| spawn | a fresh interpreter | slowest, nothing shared |
| fork | a fork of this process | nothing needs pickling; only where it is safe |

A script without `if __name__ == '__main__'`, a notebook cell and `python -c` work with each. Every
worker ends when this process does, also by SIGKILL.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

from towerpack.core import worker_process
from towerpack.core.forkserver import STATUS, ForkServer, start_python
from towerpack.core.processes import describe_exit
from towerpack.core.worker_process import NO_DESCRIPTOR

START_METHODS = ("forkserver", "spawn", "fork")
# Libraries with threads and device handles of their own: a fork of them hangs sooner or later.
UNFORKABLE = ("tensorflow", "jax", "jaxlib")


def default_start_method() -> str:
    return "forkserver" if hasattr(os, "fork") else "spawn"


def check_start_method(method: str | None) -> str:
    """The method, or the default for None; raises ValueError for one that does not exist."""
    if method is None:
        return default_start_method()
    if method not in START_METHODS:
        raise ValueError(
            f"expected a start method of {', '.join(START_METHODS)}, received {method!r}"
        )
    return method


class Child:
    """A worker process. `poll` and `wait` give its exit status, negative for a signal."""

    def __init__(self, pid: int, pidfd: int):
        self.pid, self._pidfd = pid, pidfd
        self.owner = os.getpid()
        self.status: int | None = None
        self.ended = False
        self.server: int | None = None  # the pid of the fork server that took it along

    def describe_end(self) -> str:
        if self.server is not None:
            return "with the fork server it came from, which was killed"
        return describe_exit(self.status)

    @property
    def sentinel(self) -> int:
        """A descriptor that is readable once the process has ended; NO_DESCRIPTOR where none is."""
        return self._pidfd

    def _collect(self) -> bool:
        """Looks for the exit status; True once the process has ended."""
        raise NotImplementedError

    def poll(self) -> bool:
        """Whether it has ended; `status` then says how, or is None if nobody knows."""
        if not self.ended:
            self.ended = self._collect()
        return self.ended

    def wait(self, seconds: float) -> bool:
        """Waits for the end; whether it came in time."""
        deadline = time.monotonic() + seconds
        while not self.poll():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._sleep(min(left, 0.1))
        return True

    def _sleep(self, seconds: float) -> None:
        if self._pidfd == NO_DESCRIPTOR:
            time.sleep(min(seconds, 0.005))
            return
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if poll.poll(seconds * 1000):
            time.sleep(0.001)  # it has ended; the status follows

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Sends the signal, to this process and no other that might have its number by now."""
        if self.owner != os.getpid() or self.poll():
            return
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd == NO_DESCRIPTOR:
                os.kill(self.pid, number)
            else:
                signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        """Forgets the process; it must have ended."""
        if self._pidfd != NO_DESCRIPTOR:
            os.close(self._pidfd)
            self._pidfd = NO_DESCRIPTOR


class _ServerChild(Child):
    def __init__(self, server: ForkServer, entry: str, descriptors: Sequence[int]):
        pid, pidfd, self._pipe = server.fork(entry, descriptors)
        super().__init__(pid, pidfd)
        self._server_pid = server.process.pid
        os.set_blocking(self._pipe, False)

    def _collect(self) -> bool:
        try:
            data = os.read(self._pipe, STATUS.size)
        except BlockingIOError:
            return False
        if len(data) == STATUS.size:
            (self.status,) = STATUS.unpack(data)
            return True
        # The server died; the kernel kills its children then, but it may take a moment.
        if self._pidfd != NO_DESCRIPTOR and not _is_over(self._pidfd):
            return False
        self.server = self._server_pid
        return True

    def close(self) -> None:
        super().close()
        if self._pipe != NO_DESCRIPTOR:
            os.close(self._pipe)
            self._pipe = NO_DESCRIPTOR


class _SpawnedChild(Child):
    def __init__(self, process: subprocess.Popen[bytes]):
        super().__init__(process.pid, _pidfd_of(process.pid))
        self._process = process

    def _collect(self) -> bool:
        self.status = self._process.poll()
        return self.status is not None


class _ForkedChild(Child):
    def __init__(self, pid: int):
        super().__init__(pid, _pidfd_of(pid))

    def _collect(self) -> bool:
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # somebody else in this process has reaped it
            return True
        if pid:
            self.status = os.waitstatus_to_exitcode(status)
        return bool(pid)


def launch(
    obj: Any, packed: int | None, entry: str, descriptors: Sequence[int], start_method: str
) -> Child:
    """Starts a worker that calls `entry(load, descriptors)`, where `load()` gives the object.

    `packed` is the descriptor of the object packed by `payload.pack`: pack once, launch often. It
    may be None for 'fork', which needs none. The descriptors stay open in this process.
    """
    if start_method == "fork":
        return _fork(obj, entry, descriptors)
    if packed is None:
        raise ValueError(f"start method {start_method!r} needs a packed object")
    if start_method == "spawn":
        return _spawn(packed, entry, descriptors)
    current = server()
    try:
        return _ServerChild(current, entry, [packed, *descriptors])
    except ConnectionError:  # the server was killed: another one is as good
        _forget(current)
        return _ServerChild(server(), entry, [packed, *descriptors])


def _spawn(packed: int, entry: str, descriptors: Sequence[int]) -> Child:
    parent = worker_process.own_pidfd()
    try:
        process = start_python("spawned", [packed, parent, *descriptors], entry)
    finally:
        if parent != NO_DESCRIPTOR:
            os.close(parent)
    return _SpawnedChild(process)


def check_fork_is_safe() -> None:
    """Raises RuntimeError where a fork of this process could hang."""
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


def _fork(obj: Any, entry: str, descriptors: Sequence[int]) -> Child:
    check_fork_is_safe()
    begin = worker_process.resolve(entry)
    parent = worker_process.own_pidfd()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # it is closed
            stream.flush()  # or the worker would print what stands in the buffers again
    pid = os.fork()
    if pid == 0:
        for channel in list(_channels):
            channel.close()
        worker_process.calm_opencv()
        worker_process.run(lambda: begin(lambda: obj, descriptors), parent)
    if parent != NO_DESCRIPTOR:
        os.close(parent)
    return _ForkedChild(pid)


def keep_from_forks(channel: socket.socket) -> None:
    """Names this process's end of a worker's channel: the next fork must not hold it open too."""
    _channels.add(channel)


_channels: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_lock = threading.Lock()
_server: ForkServer | None = None


def server() -> ForkServer:
    """The fork server of this process, started at the first call.

    The one piece of state that outlives a flow: keeping it makes the next workers start in
    milliseconds. It ends with this process, or by `stop_server`.
    """
    global _server
    with _lock:
        if _server is not None and not _server.alive():
            _server.close()
            _server = None
        if _server is None:
            _server = ForkServer()
        return _server


def stop_server() -> None:
    """Ends the fork server and every worker forked from it; the next need starts another."""
    if _server is not None:
        _forget(_server)


def _forget(ended: ForkServer) -> None:
    global _server
    with _lock:
        if _server is ended:  # else another thread was quicker
            _server = None
            ended.close()


def _forget_in_a_fork() -> None:
    """The lock may have been held by a thread that a fork does not have."""
    global _lock
    _lock = threading.Lock()


atexit.register(stop_server)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_a_fork)


def _pidfd_of(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return NO_DESCRIPTOR


def _is_over(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
