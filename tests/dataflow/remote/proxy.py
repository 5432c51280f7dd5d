"""A TCP proxy that cuts, stalls and corrupts."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time

CHUNK = 1 << 14
LOOK = 0.01  # seconds between two looks at whether a stall is over


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Proxy:
    """Forwards connections to `target` (a port of this machine) until the test intervenes.

    `cut` closes all connections, `refuse` keeps new ones out, `stall` forwards nothing while
    connections stay open, `corrupt` is the probability with which a byte of a chunk is changed, and
    `inject` puts bytes between those that go to the connecting end.
    """

    def __init__(self, target: int, seed: int = 0):
        self.target = target
        self.refuse = self.stall = self.closed = False
        self.corrupt, self._injected = 0.0, b""
        self.corrupted = self.connections = self.forwarded = 0
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def cut(self) -> None:
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def inject(self, data: bytes) -> None:
        self._injected = data

    def close(self) -> None:
        self.closed = self.refuse = True
        with contextlib.suppress(OSError):  # wakes the accepting thread
            socket.create_connection(("127.0.0.1", self.port)).close()
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self.closed:
            client, _ = self._listener.accept()
            try:
                if self.refuse:
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            self.connections += 1
            with self._lock:
                self._open |= {client, server}
            for pair in ((client, server), (server, client)):
                thread = threading.Thread(target=self._forward, args=(*pair, pair[1] is client))
                self._threads.append(thread)
                thread.start()

    def _forward(self, source: socket.socket, sink: socket.socket, backwards: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK):
                if backwards and self._injected:
                    chunk, self._injected = chunk + self._injected, b""
                while self.stall and not self.closed:
                    time.sleep(LOOK)
                sink.sendall(self._damaged(chunk))
                self.forwarded += len(chunk)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open -= {source, sink}
        source.close()  # each of the two threads closes the one it reads from

    def _damaged(self, chunk: bytes) -> bytes:
        if self._rng.random() >= self.corrupt:
            return chunk
        self.corrupted += 1
        damaged = bytearray(chunk)
        damaged[self._rng.randrange(len(chunk))] ^= 1 << self._rng.randrange(8)
        return bytes(damaged)
