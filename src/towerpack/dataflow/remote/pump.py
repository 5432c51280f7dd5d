"""The thread that moves messages between sockets and one end's half of the protocol.

A binding end has a ROUTER socket, a connecting end a DEALER; which of the two sends datapoints is
another matter. The thread owns the sockets. What it shares with the caller's thread, the outbox or
inbox, is guarded by `condition`, and whoever changes it calls `wake`.

Reconnecting, dead links (ZMTP heartbeats, answered by libzmq also while Python is busy), the
largest frame and encryption are libzmq's; the rest of the promises are the protocol's.
"""

from __future__ import annotations

import contextlib
import socket as sockets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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
from towerpack.dataflow.remote.link_options import LinkCounts, LinkOptions, Peer
from towerpack.dataflow.remote.messages import BadMessage, Data, Message, pack, unpack

CLOSE_SECONDS = 2.0  # how long closing waits for the other ends to confirm it
LINGER_MS = 1000  # and then for the last words to leave
QUEUE_MARGIN = 100  # messages in libzmq's queues beyond the datapoints: statuses
BURST = 64  # messages taken from one socket before others have their turn
HANDSHAKE_MS = 10_000  # a connection that has not said hello by then is none of ours
RECONNECT_MS, RECONNECT_MAX_MS = 50, 2000
BEATS_UNTIL_DEAD = 10
PATIENCE = 60.0  # seconds of waiting after which the log says for what
CLEAN_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
FAILED_HANDSHAKES = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Engine(Protocol):
    """One end's half of the protocol: an Outbox or an Inbox."""

    def connected(self, link: int) -> None: ...
    def disconnected(self, link: int, now: float) -> None: ...
    def lost(self, peer: Peer, now: float) -> None: ...
    def receive(self, peer: Peer, message: Message, payload: Any, now: float) -> None: ...
    def tick(self, now: float) -> float: ...
    def outgoing(self, now: float) -> Iterator[tuple[Peer, Message, bytes | None]]: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...


@dataclass
class Endpoints:
    """The addresses of one end, and how its sockets are to be."""

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


class Pump:
    """Runs an engine over sockets, in a thread of its own, until it is closed.

    Sockets are opened by the constructor, so that a wrong address is an error there. An exception
    in the thread is raised by `wait_until`, or by `close`.
    """

    def __init__(self, engine: Engine, endpoints: Endpoints, counts: LinkCounts):
        self.engine, self.counts = engine, counts
        self.condition = threading.Condition()
        self._endpoints = endpoints
        self._failure: BaseException | None = None
        self._stopping = self._woken = False
        self._stop_by: float | None = None
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._sockets: list[zmq.Socket] = []
        self._monitors: list[zmq.Socket] = []
        self._doorman: zmq.Socket | None = None
        self._bell, self._ear = sockets.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        try:
            self._open()
        except BaseException:
            self._close_sockets()
            raise
        # A daemon, since a consumer that never closes must not keep the interpreter from exiting.
        self._thread = threading.Thread(target=self._run, name="towerpack-remote", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Makes the thread look at the engine again. Call it with `condition` held."""
        if not self._woken:
            self._woken = True
            with contextlib.suppress(BlockingIOError):  # full of rings: it will hear
                self._bell.send(b"\0")

    def wait_until(self, ready: Callable[[], bool], describe: Callable[[], str]) -> None:
        """Waits, with `condition` held, until `ready()` or until the pump was closed."""
        patient_until = time.monotonic() + PATIENCE
        while not ready() and not self._stopping:
            self.condition.wait(PATIENCE)
            if time.monotonic() >= patient_until:
                patient_until = time.monotonic() + PATIENCE
                logger.warning("%s: waiting for %s", self._endpoints.addresses[0], describe())
        self._raise_failure()

    def close(self) -> None:
        """Lets the engine say its last words, and frees everything. May be called twice.

        Takes no lock: the garbage collector may call it, in any thread, also in its own.
        """
        self._stopping = True
        with contextlib.suppress(OSError):  # full of rings, or closed already
            self._bell.send(b"\0")
        if self._thread is not threading.current_thread():
            self._thread.join()
            self._raise_failure()

    def _raise_failure(self) -> None:
        """Raises what happened in the thread, once."""
        failure, self._failure = self._failure, None
        if failure:
            raise failure

    def _open(self) -> None:
        keys = self._endpoints.keys
        self._poller.register(self._ear, zmq.POLLIN)
        if keys and self._endpoints.bind:
            self._doorman = self._context.socket(zmq.REP)
            self._doorman.bind(ZAP_ENDPOINT)
            self._poller.register(self._doorman, zmq.POLLIN)
        for number, address in enumerate(self._endpoints.addresses):
            socket = self._context.socket(zmq.ROUTER if self._endpoints.bind else zmq.DEALER)
            self._sockets.append(socket)
            self._configure(socket, address)
            monitor = socket.get_monitor_socket(CLEAN_EVENTS | FAILED_HANDSHAKES)
            self._monitors.append(monitor)
            self._poller.register(socket, zmq.POLLIN)
            self._poller.register(monitor, zmq.POLLIN)
            self._attach(socket, self._endpoints.addresses[number])

    def _configure(self, socket: zmq.Socket, address: str) -> None:
        options = self._endpoints.options
        heartbeat = max(1, int(options.heartbeat * 1000))
        socket.linger = LINGER_MS if self._endpoints.bind else 0
        socket.sndhwm = socket.rcvhwm = self._endpoints.capacity + QUEUE_MARGIN
        socket.maxmsgsize = options.max_message
        socket.handshake_ivl = HANDSHAKE_MS
        socket.heartbeat_ivl = heartbeat
        socket.heartbeat_timeout = heartbeat * BEATS_UNTIL_DEAD
        socket.reconnect_ivl, socket.reconnect_ivl_max = RECONNECT_MS, RECONNECT_MAX_MS
        socket.ipv6 = "[" in address
        if self._endpoints.bind:
            socket.router_mandatory = True  # an address that is gone is an error, not silence
        if self._endpoints.keys:
            secure(socket, self._endpoints.keys, self._endpoints.bind)

    def _attach(self, socket: zmq.Socket, address: str) -> None:
        if not self._endpoints.bind:
            socket.connect(address)
            return
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            raise OSError(
                error.errno,
                f"cannot bind to {address}: {error.strerror}. If it is in use, another process has "
                "it, or another iterator of this flow that was not closed",
            ) from error

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
        """One round: say what is to be said, then wait for something to happen."""
        now = time.monotonic()
        with self.condition:
            self._woken = False
            if self._stopping and self._stop_by is None:
                self._stop_by = now + CLOSE_SECONDS
                self.engine.close()
            due = self.engine.tick(now)
            for peer, message, payload in self.engine.outgoing(now):
                self._send(peer, message, payload, now)
            self.condition.notify_all()
            if self._stop_by is not None:
                if self.engine.closed or now >= self._stop_by:
                    return False
                due = min(due, self._stop_by)
        timeout = max(0.0, due - time.monotonic())
        for source, _ in self._poller.poll(int(timeout * 1000) + 1):
            self._attend(source)
        return True

    def _attend(self, source: Any) -> None:
        if source == self._ear.fileno():
            with contextlib.suppress(BlockingIOError):
                self._ear.recv(4096)
        elif source is self._doorman:
            self._admit()
        elif source in self._monitors:
            self._notice(self._monitors.index(source))
        else:
            self._take_burst(self._sockets.index(source))

    def _send(self, peer: Peer, message: Message, payload: bytes | None, now: float) -> None:
        frames = [peer.route] if peer.route else []
        frames.append(pack(message))
        if payload is not None:
            frames.append(payload)
        try:
            self._sockets[peer.link].send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            pass  # its queue is full, it does not read: the next status shows what is missing
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self.engine.lost(peer, now)

    def _take_burst(self, link: int) -> None:
        socket, bound = self._sockets[link], self._endpoints.bind
        with self.condition:
            for _ in range(BURST):
                try:
                    frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    return
                route = frames.pop(0).bytes if bound else b""
                self._take(Peer(link, route), frames)

    def _take(self, peer: Peer, frames: list[zmq.Frame]) -> None:
        try:
            message = unpack(frames[0].bytes) if frames else None
        except BadMessage:
            message = None
        if message is None or len(frames) != (2 if isinstance(message, Data) else 1):
            self.counts.garbage += 1
            return
        payload = frames[1].buffer if len(frames) > 1 else None
        self.engine.receive(peer, message, payload, time.monotonic())

    def _notice(self, link: int) -> None:
        event = parse_monitor_message(self._monitors[link].recv_multipart())["event"]
        with self.condition:
            if event & FAILED_HANDSHAKES:
                self.counts.refused += 1
                if self.counts.refused == 1:
                    logger.warning(
                        "%s: a connection failed its handshake (no peer of this kind, or a key "
                        "that does not fit); further ones are only counted",
                        self._endpoints.addresses[link],
                    )
            elif event == zmq.EVENT_DISCONNECTED:
                self.counts.disconnects += 1
                if not self._endpoints.bind:
                    # What is queued for a peer that is gone need not be waited for in the end.
                    self._sockets[link].linger = 0
                    self.engine.disconnected(link, time.monotonic())
            elif not self._endpoints.bind:
                self._sockets[link].linger = LINGER_MS
                self.engine.connected(link)

    def _admit(self) -> None:
        keys = self._endpoints.keys
        if self._doorman and keys:
            request = self._doorman.recv_multipart()
            self._doorman.send_multipart(answer_admission(request, keys))

    def _close_sockets(self) -> None:
        for socket in self._sockets:
            socket.disable_monitor()
            socket.close()
        for monitor in self._monitors:
            monitor.close(linger=0)
        if self._doorman:
            self._doorman.close(linger=0)
        self._context.term()
        self._bell.close()
        self._ear.close()
