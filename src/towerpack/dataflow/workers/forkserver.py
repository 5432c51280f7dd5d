"""A small process that forks workers on request: fast to fork from, and free of TensorFlow.

It is started once for each parent process, when the first worker is needed, with numpy and the code
of the workers loaded. It runs no user code and no threads, so it can be forked safely whatever the
parent does. Requests and descriptors arrive on a socket: to fork a worker, or to report how one has
ended. It ends, and its children with it, when the parent closes the socket or ends.

The standard library's fork server does not fit: it is ended by a SIGTERM to the process group, it
lets its children live when it is killed, and it has no public interface but `Process`, which
imports the user's main module.
"""

from __future__ import annotations

import atexit
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

from towerpack.core.processes import NO_DESCRIPTOR, killed_with_parent, own_pidfd
from towerpack.dataflow.workers import startup

REQUEST_SIZE = 1024  # of the JSON with trailing spaces, so that two requests stay apart
REPLY = struct.Struct("<Qq")  # number of the request; pid or exit status
RUNNING = 1 << 32  # the status of a worker that has none yet
MAX_DESCRIPTORS = 64
PRELOAD = ("numpy.random", "towerpack.dataflow.workers.worker")
# Libraries that can be forked safely. If the parent has loaded one, its workers will need it too.
PRELOAD_IF_LOADED = ("cv2", "lmdb", "simplejpeg", "h5py")
_EXIT_SECONDS = 5.0  # killing a handful of children takes milliseconds

BOOT = (
    "import json, signal, sys\n"
    "for number in (signal.SIGINT, signal.SIGTERM):\n"  # during the imports too
    "    signal.signal(number, lambda number, frame: None)\n"
    "sys.path[:] = json.loads(sys.argv[1])\n"
    "from towerpack.dataflow.workers.{module} import main\n"
    "main(*sys.argv[2:])\n"
)


def start_python(
    module: str, descriptors: Sequence[int], arguments: Sequence[object]
) -> subprocess.Popen[bytes]:
    """A fresh interpreter that runs `main(*arguments)` of a module of this room."""
    if not sys.executable:
        raise RuntimeError(
            "worker processes need the Python interpreter, and sys.executable is empty: set it, or "
            "use num_proc=0 or threads"
        )
    path = json.dumps([str(entry) for entry in sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", BOOT.format(module=module), path, *map(str, arguments)],
        pass_fds=[d for d in descriptors if d != NO_DESCRIPTOR],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **startup.SINGLE_THREADED},
    )


class ForkServer:
    """The parent's side of the server. Any thread may call `request`."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._requests = 0
        self._socket, theirs = socket.socketpair()
        preload = [*PRELOAD, *(name for name in PRELOAD_IF_LOADED if name in sys.modules)]
        try:
            with own_pidfd() as parent:
                descriptors = [theirs.fileno(), parent]
                self.process = start_python("forkserver", descriptors, [*descriptors, *preload])
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()

    def request(self, *request: object, descriptors: Sequence[int] = ()) -> int:
        """The server's reply; raises ConnectionError if it has ended."""
        with self._lock:
            self._requests += 1
            message = json.dumps([self._requests, *request]).ljust(REQUEST_SIZE).encode()
            socket.send_fds(self._socket, [message], descriptors)
            while True:
                data = self._socket.recv(REPLY.size, socket.MSG_WAITALL)
                if len(data) < REPLY.size:
                    raise ConnectionResetError("the fork server has ended")
                number, reply = REPLY.unpack(data)
                if number == self._requests:
                    return int(reply)
                # The answer to a request that Ctrl-C interrupted. Had it started a worker, that one
                # ends by itself, since the other end of its channel is closed.

    def is_alive(self) -> bool:
        return self._owner == os.getpid() and self.process.poll() is None

    def close(self) -> None:
        """Ends the server and all that it forked."""
        self._socket.close()
        if self._owner != os.getpid():
            # In a fork of the parent: it must not wait for a process that is not its child, and
            # must not warn about it either.
            self.process.returncode = 0
            return
        try:
            self.process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


_lock = threading.Lock()
_server: ForkServer | None = None


def server() -> ForkServer:
    """The fork server of this process, started by the first call.

    It outlives the flows, so that their next workers start in milliseconds. It ends with this
    process, or by `stop_server`.
    """
    global _server
    with _lock:
        if _server is not None and not _server.is_alive():
            _server.close()
            _server = None
        if _server is None:
            _server = ForkServer()
        return _server


def stop_server(server: ForkServer | None = None) -> None:
    """Ends the fork server and its workers; a new one is started when it is needed.

    With an argument, only if that is still the current server.
    """
    global _server
    with _lock:
        ended = _server
        if ended is not None and (server is None or ended is server):
            _server = None
            ended.close()


def _after_fork() -> None:
    """A thread that does not exist in the fork may have held the lock."""
    global _lock
    _lock = threading.Lock()


atexit.register(stop_server)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def main(requests: str, parent: str, *preload: str) -> None:
    """The server process."""
    startup.ignore_signals()
    for name in preload:
        # If one fails to load, the worker that needs it reports that.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that a collection in a worker does not copy all our pages
    _serve(socket.socket(fileno=int(requests)), int(parent))


def _serve(requests: socket.socket, parent: int) -> None:
    children: set[int] = set()
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    if parent != NO_DESCRIPTOR:  # the socket alone: a fork of the parent may hold its other end
        poll.register(parent, select.POLLIN)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while parent not in dict(poll.poll()):
            data, descriptors, _, _ = socket.recv_fds(requests, REQUEST_SIZE, MAX_DESCRIPTORS)
            if not data:
                break
            number, action, *arguments = json.loads(data)
            if action == "fork":
                entry, worker = arguments
                reply = _fork(requests, parent, entry, worker, descriptors)
                children.add(reply)
            else:
                (pid,) = arguments
                ended, status = os.waitpid(pid, os.WNOHANG)
                reply = os.waitstatus_to_exitcode(status) if ended else RUNNING
                if ended:
                    children.remove(pid)
            requests.sendall(REPLY.pack(number, reply))
    for pid in children:  # not reaped yet, so none of them is another process by now
        os.kill(pid, signal.SIGKILL)


def _fork(
    requests: socket.socket, parent: int, entry: str, number: int, descriptors: Sequence[int]
) -> int:
    server = os.getpid()

    def begin() -> None:
        killed_with_parent(server)
        requests.close()
        startup.begin_packed(entry, number, descriptors)

    pid = os.fork()
    if pid == 0:
        startup.run(begin, parent)
    for descriptor in descriptors:
        os.close(descriptor)
    return pid
