"""A small process that forks workers on request: quick to fork from, and free of TensorFlow.

It is started once for each parent process, at the first need, with numpy and towerpack's data rooms
loaded. It holds no user code and no threads, so that forking it is safe whatever the parent does.
Requests and descriptors come through a socket. It reaps its children and tells their exit status
through a pipe for each. It ends, and its children with it, when the parent closes the socket or
dies.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence

from towerpack.core import payload, worker_process
from towerpack.core.processes import enable_death_signal

REPLY = struct.Struct("<QiB")  # request number, pid, whether a pidfd comes along
STATUS = struct.Struct("<i")
MAX_REQUEST = 4096
MAX_DESCRIPTORS = 64
PRELOAD = ("numpy.random", "towerpack.dataflow.parallel.worker")
# Loaded by the parent already and harmless to fork: loading them here saves every worker the time.
PRELOAD_IF_LOADED = ("cv2", "lmdb", "simplejpeg", "h5py")
_EXIT_SECONDS = 5.0  # to reap a handful of killed children takes milliseconds

# Runs before towerpack can be imported: where to find it stands in the payload.
BOOT = (
    "import json, os, sys\n"
    "packed = int(sys.argv[1])\n"
    "size = int.from_bytes(os.pread(packed, 8, 0), 'little')\n"
    "sys.path[:] = json.loads(os.pread(packed, size, 8))['path']\n"
    "from towerpack.core.{module} import main\n"
    "main(sys.argv[1:])\n"
)


def start_python(
    module: str, descriptors: Sequence[int], *arguments: str
) -> subprocess.Popen[bytes]:
    """A fresh interpreter that runs `main` of a core module; `descriptors[0]` is a payload."""
    if not sys.executable:
        raise RuntimeError(
            "worker processes need the Python interpreter, and sys.executable is empty: set it, or "
            "use num_proc=0 or threads"
        )
    return subprocess.Popen(
        [sys.executable, "-c", BOOT.format(module=module), *map(str, descriptors), *arguments],
        pass_fds=[d for d in descriptors if d != worker_process.NO_DESCRIPTOR],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **worker_process.SINGLE_THREADED},
    )


class ForkServer:
    """The parent's side of the server. Any thread may call `fork`."""

    def __init__(self) -> None:
        worker_process.open_standard_descriptors()
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._requests = 0
        self._parent = worker_process.own_pidfd()
        preload = [name for name in PRELOAD_IF_LOADED if name in sys.modules]
        packed = payload.pack(None, "the fork server")
        self._socket, theirs = socket.socketpair()
        try:
            descriptors = [packed, theirs.fileno(), self._parent]
            self.process = start_python("forkserver", descriptors, *PRELOAD, *preload)
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
            os.close(packed)

    def fork(self, entry: str, descriptors: Sequence[int]) -> tuple[int, int, int]:
        """Starts a worker; returns its pid, its pidfd or NO_DESCRIPTOR, and its status pipe.

        `descriptors[0]` is the payload. Raises ConnectionError when the server is gone.
        """
        status, theirs = os.pipe()
        try:
            with self._lock:
                pid, pidfd = self._exchange(entry, [theirs, self._parent, *descriptors])
        except BaseException:
            os.close(status)
            raise
        finally:
            os.close(theirs)
        return pid, pidfd, status

    def _exchange(self, entry: str, descriptors: list[int]) -> tuple[int, int]:
        self._requests += 1
        sent = [d for d in descriptors if d != worker_process.NO_DESCRIPTOR]
        watched = self._parent != worker_process.NO_DESCRIPTOR
        request = json.dumps([self._requests, entry, watched]).encode()
        socket.send_fds(self._socket, [request], sent)
        while True:
            data, fds, _, _ = socket.recv_fds(self._socket, REPLY.size, 1)
            if len(data) < REPLY.size:
                raise ConnectionResetError("the fork server is gone")
            number, pid, _ = REPLY.unpack(data)
            if number == self._requests:
                return pid, fds[0] if fds else worker_process.NO_DESCRIPTOR
            # The answer to a request that Ctrl-C interrupted: that worker ends by itself, since
            # the other end of its channel is closed.
            for descriptor in fds:
                os.close(descriptor)

    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def close(self) -> None:
        """Ends the server and whatever it forked."""
        self._socket.close()
        if self._parent != worker_process.NO_DESCRIPTOR:
            os.close(self._parent)
            self._parent = worker_process.NO_DESCRIPTOR
        if self.owner != os.getpid():
            # A fork of the parent must not wait for, nor warn about, a process it does not own.
            self.process.returncode = 0
            return
        try:
            self.process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def main(arguments: list[str]) -> None:
    """The server process."""
    packed, requests, parent = map(int, arguments[:3])
    os.close(packed)
    worker_process.shut_out_signals()
    for name in arguments[3:]:
        # One that fails to load fails again, with its message, in the worker that needs it.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that a collection in a worker does not copy all our pages
    _Server(socket.socket(fileno=requests), parent).serve()


class _Server:
    def __init__(self, requests: socket.socket, parent: int):
        self.requests, self.parent = requests, parent
        self.children: dict[int, int] = {}  # pid -> the write end of its status pipe
        self.wakeup, self.signalled = os.pipe()
        os.set_blocking(self.wakeup, False)
        os.set_blocking(self.signalled, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self.signalled, warn_on_full_buffer=False)

    def serve(self) -> None:
        poll = select.poll()
        watched = [self.requests.fileno(), self.wakeup]
        if self.parent != worker_process.NO_DESCRIPTOR:
            # The socket alone would not tell: a fork of the parent may hold its other end open.
            watched.append(self.parent)
        for descriptor in watched:
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self.wakeup in ready:
                self.reap()
            if self.parent in ready or (self.requests.fileno() in ready and not self.answer()):
                break
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)

    def reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wakeup, MAX_REQUEST):
                pass
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            pipe = self.children.pop(pid)
            with contextlib.suppress(BrokenPipeError):  # the parent does not care any more
                os.write(pipe, STATUS.pack(os.waitstatus_to_exitcode(status)))
            os.close(pipe)

    def answer(self) -> bool:
        """Forks one worker; False when the parent has closed the socket."""
        try:
            request, fds, _, _ = socket.recv_fds(self.requests, MAX_REQUEST, MAX_DESCRIPTORS)
        except ConnectionResetError:
            return False
        if not request:
            return False
        number, entry, watched = json.loads(request)
        status, *fds = fds
        parent, fds = (fds[0], fds[1:]) if watched else (worker_process.NO_DESCRIPTOR, fds)
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.close(status)
            worker_process.run(lambda: self.become_worker(server, entry, fds), parent)
        self.children[pid] = status
        for descriptor in [*fds, *([parent] if watched else [])]:
            os.close(descriptor)
        pidfd = _pidfd_of(pid)
        reply = REPLY.pack(number, pid, bool(pidfd))
        try:
            socket.send_fds(self.requests, [reply], pidfd)
        except (BrokenPipeError, ConnectionResetError):
            return False
        finally:
            for descriptor in pidfd:
                os.close(descriptor)
        return True

    def become_worker(self, server: int, entry: str, descriptors: list[int]) -> None:
        _die_with(server)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.requests.close()
        inherited = [self.wakeup, self.signalled, *self.children.values()]
        if self.parent != worker_process.NO_DESCRIPTOR:
            inherited.append(self.parent)
        for descriptor in inherited:
            os.close(descriptor)
        worker_process.begin_packed(entry, descriptors[0], descriptors[1:])


def _pidfd_of(pid: int) -> list[int]:
    try:
        return [os.pidfd_open(pid)]
    except (AttributeError, OSError):
        return []


def _die_with(server: int) -> None:
    """The kernel kills this process with the server, also while native code holds the GIL."""
    if sys.platform == "linux":
        enable_death_signal(signal.SIGKILL)
        if os.getppid() != server:  # it died before we asked
            os._exit(1)
