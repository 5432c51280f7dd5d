"""The thread that moves messages between sockets and one end's half of the protocol.

A binding end has a ROUTER socket, a connecting end a DEALER; which of the two sends datapoints is
another matter. The thread owns the sockets. What it shares with the caller's thread, the outbox or
inbox, is guarded by `condition`, and whoever changes it calls `wake`.
"""

from __future__ import annotations

import contextlib
import socket as sockets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import zmq

from towerpack.core import logger
from towerpack.dataflow.remote.curve_keys import ZAP_ENDPOINT, answer_admission
from towerpack.dataflow.remote.link import Endpoints, Link, News
from towerpack.dataflow.remote.link_options import LinkCounts, Peer
from towerpack.dataflow.remote.messages import BadMessage, Data, Message, pack, unpack

BURST = 64  # messages taken from one socket before others have their turn
CLOSE_SECONDS = 2.0  # how long closing waits for the other ends to confirm it
PATIENCE = 60.0  # seconds of waiting after which the log says for what


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
        self._links: list[Link] = []
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
            self._let_go()
            self._thread.join()
            self._raise_failure()

    def _let_go(self) -> None:
        """Gives back the lock if this thread has it: Ctrl-C can strike after `with condition` has
        taken it and before its block begins, and the thread that is to end would wait for it.
        """
        with contextlib.suppress(RuntimeError):  # it has it no longer
            while True:
                self.condition.release()

    def _raise_failure(self) -> None:
        """Raises what happened in the thread, once."""
        failure, self._failure = self._failure, None
        if failure:
            raise failure

    def _open(self) -> None:
        ends = self._endpoints
        self._poller.register(self._ear, zmq.POLLIN)
        if ends.keys and ends.bind:
            self._doorman = self._context.socket(zmq.REP)
            self._doorman.bind(ZAP_ENDPOINT)
            self._poller.register(self._doorman, zmq.POLLIN)
        for address in ends.addresses:
            link = Link(self._context, address, ends)
            self._links.append(link)
            self._watch(link)

    def _watch(self, link: Link) -> None:
        self._poller.register(link.socket, zmq.POLLIN)
        self._poller.register(link.monitor, zmq.POLLIN)

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
        due = min(due, *(link.revive_at for link in self._links))
        timeout = max(0.0, due - time.monotonic())
        for source, _ in self._poller.poll(int(timeout * 1000) + 1):
            self._attend(source)
        for number, link in enumerate(self._links):
            if time.monotonic() >= link.revive_at:
                self._revive(number, link)
        return True

    def _attend(self, source: Any) -> None:
        if source == self._ear.fileno():
            with contextlib.suppress(BlockingIOError):
                self._ear.recv(4096)
        elif source is self._doorman:
            self._admit()
        else:
            for number, link in enumerate(self._links):
                if source is link.socket:
                    self._take_burst(number, link)
                elif source is link.monitor:
                    self._notice(number, link)

    def _send(self, peer: Peer, message: Message, payload: bytes | None, now: float) -> None:
        frames = [pack(message)] if payload is None else [pack(message), payload]
        if not self._links[peer.link].send(peer.route, frames):
            self.engine.lost(peer, now)

    def _take_burst(self, number: int, link: Link) -> None:
        with self.condition:
            for _ in range(BURST):
                received = link.receive()
                if received is None:
                    return
                route, frames = received
                self._take(Peer(number, route), frames)

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

    def _notice(self, number: int, link: Link) -> None:
        now = time.monotonic()
        with self.condition:
            news = link.news(now)
            if news is News.REFUSED:
                self.counts.refused += 1
                if self.counts.refused == 1:
                    logger.warning(
                        "%s: a connection failed its handshake (no peer of this kind, or a key "
                        "that does not fit); further ones are only counted",
                        link.address,
                    )
            elif news is News.DISCONNECTED:
                self.counts.disconnects += 1
            # A bound link has many connections; there, those who are gone are noticed by sending.
            if self._endpoints.bind or news is None:
                return
            if news is News.CONNECTED:
                self.engine.connected(number)
            else:
                self.engine.disconnected(number, now)

    def _revive(self, number: int, link: Link) -> None:
        self._poller.unregister(link.socket)
        self._poller.unregister(link.monitor)
        link.renew()
        self._watch(link)
        with self.condition:
            self.engine.disconnected(number, time.monotonic())

    def _admit(self) -> None:
        keys = self._endpoints.keys
        if self._doorman and keys:
            request = self._doorman.recv_multipart()
            self._doorman.send_multipart(answer_admission(request, keys))

    def _close_sockets(self) -> None:
        for link in self._links:
            link.close()
        if self._doorman:
            self._doorman.close(linger=0)
        self._context.term()
        self._bell.close()
        self._ear.close()
