"""The sockets of one end, and the thread that moves messages between them and the protocol.

The end that binds has a ROUTER socket, the end that connects a DEALER, whichever of the two sends
datapoints. libzmq reconnects, finds dead connections (its own thread answers ZMTP heartbeats even
while Python is busy), limits the size of frames and encrypts. It has one defect: after a protocol
error, such as a flipped bit in the length of a frame, or after a refused key, a connecting socket
never connects again. So a `Link` replaces its socket when that is not connected for a while.
"""

from __future__ import annotations

import contextlib
import math
import socket as sockets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from towerpack.core import logger
from towerpack.dataflow.remote.curve_keys import (
    ZAP_ENDPOINT,
    CurveKeys,
    answer_admission,
    check_address,
    secure,
)
from towerpack.dataflow.remote.protocol import (
    BadMessage,
    Data,
    End,
    LinkCounts,
    LinkOptions,
    Peer,
    pack,
    unpack,
)

LINGER_MS = 1000  # how long closing waits until the last messages have left
QUEUE_MARGIN = 100  # messages in libzmq's queues besides the datapoints
HANDSHAKE_MS = 10_000  # a connection without a handshake by then does not speak ZeroMQ
BEATS_UNTIL_DEAD = 10
RECONNECT_MS = 50  # soon: a receiver that opens its next iterator is away for a moment only
RENEW_SECONDS = 3.0  # enough for libzmq's own attempts, and rare enough for a key that stays wrong
BURST = 64  # messages read from one socket before the other sockets have their turn
CLOSE_SECONDS = 2.0  # how long closing waits until the other ends confirm it
PATIENCE = 60.0  # seconds of waiting between two warnings that say what for

REFUSED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
MONITORED = REFUSED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


@dataclass
class Endpoints:
    """The addresses of one end, and the settings of its sockets."""

    addresses: Sequence[str]
    bind: bool
    capacity: int
    options: LinkOptions
    keys: CurveKeys | None = None

    def __post_init__(self) -> None:
        if isinstance(self.capacity, bool) or not isinstance(self.capacity, int):
            raise TypeError(f"expected hwm as an integer, received {self.capacity!r}")
        if self.capacity < 1:
            raise ValueError(f"expected a positive hwm, received {self.capacity}")
        for address in self.addresses:
            check_address(address, self.bind, self.keys)


class Link:
    """A ROUTER that is bound, or a DEALER that is connected, to one address; for one thread.

    The socket of a connecting link must be replaced (`renew`) at `renew_at`, unless it connects
    before.
    """

    def __init__(self, context: zmq.Context, address: str, ends: Endpoints):
        self.address = address
        self._context, self._ends = context, ends
        self._open()

    def _open(self) -> None:
        self.renew_at = math.inf if self._ends.bind else time.monotonic() + RENEW_SECONDS
        self.socket = self._context.socket(zmq.ROUTER if self._ends.bind else zmq.DEALER)
        self.monitor = self.socket.get_monitor_socket(MONITORED)
        try:
            self._configure()
            self._attach()
        except BaseException:
            self.close()
            raise

    def _configure(self) -> None:
        socket, ends = self.socket, self._ends
        heartbeat = max(1, int(ends.options.heartbeat * 1000))
        socket.linger = LINGER_MS if ends.bind else 0
        socket.sndhwm = socket.rcvhwm = ends.capacity + QUEUE_MARGIN
        socket.maxmsgsize = ends.options.max_message
        socket.handshake_ivl = HANDSHAKE_MS
        socket.heartbeat_ivl = heartbeat
        socket.heartbeat_timeout = heartbeat * BEATS_UNTIL_DEAD
        socket.reconnect_ivl = RECONNECT_MS
        socket.ipv6 = "[" in self.address
        if ends.bind:
            socket.router_mandatory = True  # sending to a peer that is gone raises an error
        if ends.keys:
            secure(socket, ends.keys, ends.bind)

    def _attach(self) -> None:
        if not self._ends.bind:
            self.socket.connect(self.address)
            return
        try:
            self.socket.bind(self.address)
        except zmq.ZMQError as error:
            raise OSError(
                error.errno,
                f"cannot bind to {self.address}: {error.strerror}. If it is in use, another "
                "process has it, or another iterator of this flow that was not closed",
            ) from error

    def send(self, route: bytes, frames: list[bytes]) -> bool:
        """Returns whether the peer is connected. If its queue is full, nothing is sent."""
        try:
            self.socket.send_multipart([route, *frames] if route else frames, zmq.NOBLOCK)
        except zmq.Again:
            pass  # it does not read now; the next status shows it what it missed
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def receive(self) -> tuple[bytes, list[zmq.Frame]] | None:
        """Returns the next message and the address it came from, if there is one."""
        try:
            frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        return (frames.pop(0).bytes if self._ends.bind else b""), frames

    def next_event(self) -> int:
        """Reads one event of a connection."""
        event = parse_monitor_message(self.monitor.recv_multipart())["event"]
        if not self._ends.bind:
            connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            # Closing need not wait for what is queued for a peer that is gone.
            self.socket.linger = LINGER_MS if connected else 0
            if connected:
                self.renew_at = math.inf
            else:
                self.renew_at = min(self.renew_at, time.monotonic() + RENEW_SECONDS)
        return event

    def renew(self) -> None:
        self.close()
        self._open()

    def close(self) -> None:
        self.socket.disable_monitor()
        self.socket.close()
        self.monitor.close(linger=0)


class Pump:
    """Runs one end of the protocol over sockets, in a thread of its own, until it is closed.

    The constructor opens the sockets, so that it raises the error of a wrong address. An exception
    in the thread is raised by `wait_until` or by `close`. The thread owns the sockets. It shares
    `end` with the caller's thread: `condition` guards it, and a thread that changes it calls
    `wake`.
    """

    def __init__(self, end: End[Any], endpoints: Endpoints, counts: LinkCounts):
        self.end, self.counts = end, counts
        self.condition = threading.Condition()
        self._endpoints = endpoints
        self._failure: BaseException | None = None
        self._stopping = self._woken = False
        self._stop_by: float | None = None
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._handlers: dict[Any, Callable[[], None]] = {}  # by socket, or file descriptor
        self._links: list[Link] = []
        self._wake_in, self._wake_out = sockets.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._admission: zmq.Socket | None = None
        try:
            self._open()
        except BaseException:
            self._close_sockets()
            raise
        # A daemon, since a consumer that never closes must not keep the interpreter from exiting.
        self._thread = threading.Thread(target=self._run, name="towerpack-remote", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Makes the thread run the protocol again. Call it with `condition` held."""
        if not self._woken:
            self._woken = True
            with contextlib.suppress(BlockingIOError):  # full of wake-ups: it will read them
                self._wake_in.send(b"\0")

    def wait_until(self, ready: Callable[[], bool], describe: Callable[[], str]) -> None:
        """Waits, with `condition` held, until `ready()` or until the pump is closed."""
        warn_at = time.monotonic() + PATIENCE
        while not ready() and not self._stopping:
            self.condition.wait(PATIENCE)
            if time.monotonic() >= warn_at:
                warn_at = time.monotonic() + PATIENCE
                logger.warning("%s: waiting for %s", self._endpoints.addresses[0], describe())
        self._raise_failure()

    def close(self) -> None:
        """Closes the sessions and frees everything. May be called twice.

        Takes no lock: the garbage collector may call it in any thread, even in the pump's own.
        """
        self._stopping = True
        with contextlib.suppress(OSError):  # full of wake-ups, or closed already
            self._wake_in.send(b"\0")
        if self._thread is not threading.current_thread():
            # Ctrl-C can strike after `with condition` has taken the lock and before its block
            # begins. The lock would stay taken, and the pump's thread would wait for it forever.
            with contextlib.suppress(RuntimeError):  # this thread does not have it, or no longer
                while True:
                    self.condition.release()
            self._thread.join()
            self._raise_failure()

    def _raise_failure(self) -> None:
        """Raises the exception of the thread, once."""
        failure, self._failure = self._failure, None
        if failure:
            raise failure

    def _open(self) -> None:
        ends = self._endpoints
        self._watch(self._wake_out.fileno(), self._drain_wake_ups)
        if ends.keys and ends.bind:
            self._admission = self._context.socket(zmq.REP)
            self._admission.bind(ZAP_ENDPOINT)
            self._watch(self._admission, self._admit)
        for number, address in enumerate(ends.addresses):
            link = Link(self._context, address, ends)
            self._links.append(link)
            self._watch_link(number, link)

    def _watch(self, source: Any, handler: Callable[[], None]) -> None:
        self._poller.register(source, zmq.POLLIN)
        self._handlers[source] = handler

    def _watch_link(self, number: int, link: Link) -> None:
        self._watch(link.socket, lambda: self._read_messages(number, link))
        self._watch(link.monitor, lambda: self._read_event(number, link))

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:  # noqa: BLE001 (raised in the caller's thread)
            self._failure = error
        finally:
            self._close_sockets()
            with self.condition:
                self._stopping = True
                self.condition.notify_all()

    def _turn(self) -> bool:
        """Sends what is due, then waits for something to happen; returns whether to continue."""
        now = time.monotonic()
        with self.condition:
            self._woken = False
            if self._stopping and self._stop_by is None:
                self._stop_by = now + CLOSE_SECONDS
                self.end.close()
            due = self.end.tick(now)
            for peer, message, record in self.end.outgoing():
                frames = [pack(message)] if record is None else [pack(message), record]
                if not self._links[peer.link].send(peer.route, frames):
                    self.end.lost(peer, now)
            self.condition.notify_all()
            if self._stop_by is not None:
                if self.end.closed or now >= self._stop_by:
                    return False
                due = min(due, self._stop_by)
        due = min(due, *(link.renew_at for link in self._links))
        timeout = max(0.0, due - time.monotonic())
        for source, _ in self._poller.poll(int(timeout * 1000) + 1):
            self._handlers[source]()
        for number, link in enumerate(self._links):
            if time.monotonic() >= link.renew_at:
                self._renew(number, link)
        return True

    def _drain_wake_ups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_out.recv(4096)

    def _admit(self) -> None:
        if self._admission and self._endpoints.keys:
            request = self._admission.recv_multipart()
            self._admission.send_multipart(answer_admission(request, self._endpoints.keys))

    def _read_messages(self, number: int, link: Link) -> None:
        with self.condition:
            for _ in range(BURST):
                received = link.receive()
                if received is None:
                    return
                route, frames = received
                try:
                    message = unpack(frames[0].bytes) if frames else None
                except BadMessage:
                    message = None
                if message is None or len(frames) != (2 if isinstance(message, Data) else 1):
                    self.counts.garbage += 1
                    continue
                record = frames[1].buffer if len(frames) > 1 else None
                self.end.receive(Peer(number, route), message, record, time.monotonic())

    def _read_event(self, number: int, link: Link) -> None:
        with self.condition:
            event = link.next_event()
            if event & REFUSED:
                self.counts.refused += 1
                if self.counts.refused == 1:
                    logger.warning(
                        "%s: the handshake of a connection failed (it does not speak ZeroMQ, or "
                        "its key is wrong); further failures are only counted",
                        link.address,
                    )
            elif event == zmq.EVENT_DISCONNECTED:
                self.counts.disconnects += 1
            # A bound link has many connections; it notices by sending which of them are gone.
            if self._endpoints.bind:
                return
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.end.connected(number)
            else:
                self.end.lost(Peer(number), time.monotonic())

    def _renew(self, number: int, link: Link) -> None:
        for source in (link.socket, link.monitor):
            self._poller.unregister(source)
            del self._handlers[source]
        link.renew()
        self._watch_link(number, link)
        with self.condition:
            self.end.lost(Peer(number), time.monotonic())

    def _close_sockets(self) -> None:
        for link in self._links:
            link.close()
        if self._admission:
            self._admission.close(linger=0)
        self._context.term()
        self._wake_in.close()
        self._wake_out.close()
