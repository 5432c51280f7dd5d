"""The sockets of one end, and the thread that moves messages between them and the protocol.

The end that binds has a ROUTER socket, the end that connects a DEALER, whichever of the two sends
datapoints. libzmq reconnects, finds dead connections (its own thread answers ZMTP heartbeats even
while Python is busy), limits the size of frames and encrypts. It has one defect: after a protocol
error, such as a flipped bit in the length of a frame, or after a refused key, a connecting socket
never connects again. So a socket that is not connected for a while is replaced.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from towerpack.core import logger
from towerpack.dataflow.remote.curve_keys import ZAP_ENDPOINT, answer_admission, secure
from towerpack.dataflow.remote.protocol import BadMessage, Data, End, Peer, pack, unpack

LINGER_MS = 1000  # how long a closed socket waits until its last messages have left
QUEUE_MARGIN = 100  # messages in libzmq's queues besides the datapoints
HANDSHAKE_MS = 10_000  # a connection without a handshake by then does not speak ZeroMQ
BEATS_UNTIL_DEAD = 10
RENEW_SECONDS = 3.0  # enough for libzmq's own attempts, and rare enough for a key that stays wrong
BURST = 64  # messages read from one socket before the other sockets have their turn
CLOSE_SECONDS = 2.0  # how long closing waits until the other ends confirm it
PATIENCE = 60.0  # seconds of waiting between two warnings

REFUSED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
MONITORED = REFUSED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


@dataclass
class Link:
    """A ROUTER that is bound, or a DEALER that is connected, to one address."""

    address: str
    socket: zmq.Socket
    monitor: zmq.Socket
    renew_at: float  # when a connecting socket that is not connected is replaced


class LinkThread:
    """Runs one end of the protocol over sockets, in a thread of its own, until it is closed.

    The constructor opens the sockets, so it raises the error of a wrong address. An exception in
    the thread is raised by `wait_until` or by `close`. The thread owns the sockets. It shares `end`
    with the caller's thread: `condition` guards it.
    """

    def __init__(self, end: End[Any]):
        self.end, self._ends = end, end.endpoints
        self.condition = threading.Condition()
        end.wake = self._wake
        self._failure: BaseException | None = None
        self._stopping = self._woken = False
        self._stop_by = math.inf
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_out.setblocking(False)
        self._context = zmq.Context()
        try:
            self._admission = self._context.socket(zmq.REP)
            if self._ends.keys and self._ends.bind:
                self._admission.bind(ZAP_ENDPOINT)
            self._links = [self._open(address) for address in self._ends.addresses]
        except BaseException:
            self._close_sockets()
            raise
        # A daemon, since a consumer that never closes must not keep the interpreter from exiting.
        self._thread = threading.Thread(target=self._run, name="towerpack-remote", daemon=True)
        self._thread.start()

    def _wake(self) -> None:
        """Makes the thread run the protocol again."""
        if not self._woken:  # a system call would let the other thread run each time
            self._woken = True
            with contextlib.suppress(OSError):  # the thread has ended
                self._wake_in.send(b"\0")

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Waits, with `condition` held, until `ready()` or until this link is closed."""
        while not self.condition.wait_for(lambda: ready() or self._stopping, PATIENCE):
            logger.warning(
                "%s: waiting for %s; %s connected",
                self._ends.addresses[0],
                self.end.waits_for,
                self.end.reachable or "none is",
            )
        self._raise_failure()

    def close(self) -> None:
        """Closes the sessions and frees everything. May be called twice.

        Takes no lock: the garbage collector may call it in any thread, even in this one.
        """
        self._stopping = True
        self._wake()
        if self._thread is not threading.current_thread():
            # Ctrl-C can interrupt the caller after `with condition` has taken the lock and before
            # its block begins. The lock would stay taken, and the thread would wait for it forever.
            with contextlib.suppress(RuntimeError):  # the caller does not hold it, or no longer
                while True:
                    self.condition.release()
            self._thread.join()
            self._raise_failure()

    def _raise_failure(self) -> None:
        """Raises the exception of the thread, once."""
        failure, self._failure = self._failure, None
        if failure:
            raise failure

    def _run(self) -> None:
        try:
            while self._turn():
                self._wait()
        except BaseException as error:  # noqa: BLE001 (raised in the caller's thread)
            self._failure = error
        finally:
            self._close_sockets()
            with self.condition:
                self._stopping = True
                self.condition.notify_all()

    def _turn(self) -> bool:
        """Reads and sends what it can; returns whether to continue."""
        with self.condition:
            self._woken = False
            now = self.end.now = time.monotonic()
            for number, link in enumerate(self._links):
                self._read_events(link)
                self._read_messages(number, link)
                if now >= link.renew_at:
                    link.socket.close(linger=0)
                    link.monitor.close()
                    self._links[number] = self._open(link.address)
            if self._stopping and self._stop_by == math.inf:
                self._stop_by = now + CLOSE_SECONDS
                self.end.close()
            for peer, message, record in self.end.outgoing():
                frames = [peer.route, pack(message), record]
                # What is lost here, because the peer is gone or its queue is full, is sent again.
                with contextlib.suppress(zmq.Again):
                    self._links[peer.link].socket.send_multipart(
                        [frame for frame in frames if frame], zmq.NOBLOCK
                    )
            self.condition.notify_all()
            return not self._stopping or (bool(self.end.sessions) and now < self._stop_by)

    def _wait(self) -> None:
        """Waits until there is something to read or to do."""
        poller = zmq.Poller()
        for source in (self._wake_out, self._admission):
            poller.register(source, zmq.POLLIN)
        for link in self._links:
            poller.register(link.socket, zmq.POLLIN)
            poller.register(link.monitor, zmq.POLLIN)
        due = min(self.end.next_beat, self._stop_by, *(link.renew_at for link in self._links))
        poller.poll(int(max(0.0, due - time.monotonic()) * 1000) + 1)
        with contextlib.suppress(BlockingIOError):
            self._wake_out.recv(4096)
        if self._ends.keys and self._admission.poll(0):
            request = self._admission.recv_multipart()
            self._admission.send_multipart(answer_admission(request, self._ends.keys))

    def _read_messages(self, number: int, link: Link) -> None:
        for _ in range(BURST):
            try:
                frames = link.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            route = frames.pop(0).bytes if self._ends.bind else b""
            try:
                message = unpack(frames[0].bytes if frames else b"")
                if len(frames) != (2 if isinstance(message, Data) else 1):
                    raise BadMessage(f"a message of {len(frames)} frames")
            except BadMessage as error:
                self._count(link, "garbage", f"dropped a message: {error}")
            else:
                record = frames[1].buffer if len(frames) > 1 else None
                self.end.receive(Peer(number, route), message, record)

    def _read_events(self, link: Link) -> None:
        while link.monitor.poll(0):
            event = parse_monitor_message(link.monitor.recv_multipart())["event"]
            if event & REFUSED:
                problem = "it does not speak ZeroMQ, or its key is wrong"
                self._count(link, "refused", f"the handshake of a connection failed ({problem})")
            elif event == zmq.EVENT_DISCONNECTED:
                self._ends.counts.disconnects += 1
            if not self._ends.bind:
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    link.renew_at, self.end.next_beat = math.inf, self.end.now
                else:
                    link.renew_at = min(link.renew_at, self.end.now + RENEW_SECONDS)

    def _count(self, link: Link, name: str, event: str) -> None:
        """Counts an event, and logs the first of its kind."""
        counts = vars(self._ends.counts)
        counts[name] += 1
        if counts[name] == 1:
            logger.warning("%s: %s; further ones are only counted", link.address, event)

    def _open(self, address: str) -> Link:
        bind, keys, options = self._ends.bind, self._ends.keys, self._ends.options
        heartbeat = max(1, int(options.heartbeat * 1000))
        opened = self._context.socket(zmq.ROUTER if bind else zmq.DEALER)
        monitor = opened.get_monitor_socket(MONITORED)
        opened.sndhwm = opened.rcvhwm = self._ends.capacity + QUEUE_MARGIN
        opened.maxmsgsize = options.max_message
        opened.handshake_ivl = HANDSHAKE_MS
        opened.heartbeat_ivl = heartbeat
        opened.heartbeat_timeout = heartbeat * BEATS_UNTIL_DEAD
        opened.immediate = not bind  # queue nothing for a peer that is not connected
        opened.ipv6 = "[" in address
        if keys:
            secure(opened, keys, bind)
        try:
            (opened.bind if bind else opened.connect)(address)
        except zmq.ZMQError as error:
            raise OSError(
                error.errno,
                f"cannot {'bind' if bind else 'connect'} to {address}: {error.strerror}. If it is "
                "in use, another process has it, or another iterator of this flow that was not "
                "closed",
            ) from error
        return Link(
            address, opened, monitor, math.inf if bind else time.monotonic() + RENEW_SECONDS
        )

    def _close_sockets(self) -> None:
        self._context.destroy(LINGER_MS)
        self._wake_in.close()
        self._wake_out.close()
