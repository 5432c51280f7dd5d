"""One ZeroMQ socket of a remote flow, and what libzmq says about its connections.

Reconnecting, dead links (ZMTP heartbeats, answered by libzmq's own thread also while Python is
busy), the largest frame and encryption are libzmq's. One thing it does not do: after a protocol
error, such as a flipped bit in a frame's length, a connecting socket never connects again. A link
notices that nothing happens any more, and makes its socket anew.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import parse_monitor_message

from towerpack.dataflow.remote.curve_keys import CurveKeys, check_address, secure
from towerpack.dataflow.remote.link_options import LinkOptions

LINGER_MS = 1000  # how long closing waits for the last words to leave
QUEUE_MARGIN = 100  # messages in libzmq's queues beyond the datapoints: statuses
HANDSHAKE_MS = 10_000  # a connection that has not said hello by then is none of ours
CONNECT_MS = 2000
RECONNECT_MS, RECONNECT_MAX_MS = 50, 2000
BEATS_UNTIL_DEAD = 10
REVIVE_SECONDS = 0.25  # after a disconnect libzmq says at once that it will try again, or never
REFUSED_SECONDS = 2.0  # before another try after a failed handshake: a wrong key stays wrong
SILENT_SECONDS = 5.0  # more than libzmq takes for one try and the pause before the next

FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
TRYING = zmq.EVENT_CONNECTED | zmq.EVENT_CONNECT_DELAYED | zmq.EVENT_CONNECT_RETRIED
WATCHED = FAILED | TRYING | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class News(enum.Enum):
    """What happened to a connection."""

    CONNECTED = enum.auto()
    DISCONNECTED = enum.auto()
    REFUSED = enum.auto()  # its handshake failed


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


class Link:
    """A ROUTER that is bound, or a DEALER that is connected, to one address; for one thread.

    `revive_at` is the time at which a connecting link counts as dead unless there is news; `renew`
    then replaces `socket` and `monitor`.
    """

    def __init__(self, context: zmq.Context, address: str, ends: Endpoints):
        self.address = address
        self._context, self._ends = context, ends
        self._open()

    def _open(self) -> None:
        self.revive_at, self._not_before = math.inf, 0.0
        self.socket = self._context.socket(zmq.ROUTER if self._ends.bind else zmq.DEALER)
        self.monitor = self.socket.get_monitor_socket(WATCHED)
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
        socket.connect_timeout = CONNECT_MS
        socket.reconnect_ivl, socket.reconnect_ivl_max = RECONNECT_MS, RECONNECT_MAX_MS
        socket.ipv6 = "[" in self.address
        if ends.bind:
            socket.router_mandatory = True  # an address that is gone is an error, not silence
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
        """Whether the peer is there. To one whose queue is full, nothing is sent."""
        try:
            self.socket.send_multipart([route, *frames] if route else frames, zmq.NOBLOCK)
        except zmq.Again:
            pass  # it does not read; the next status will show it what it missed
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def receive(self) -> tuple[bytes, list[zmq.Frame]] | None:
        """The next message and where it came from, if there is one."""
        try:
            frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        return (frames.pop(0).bytes if self._ends.bind else b""), frames

    def news(self, now: float) -> News | None:
        """What the monitor has to say."""
        event = parse_monitor_message(self.monitor.recv_multipart())["event"]
        if not self._ends.bind:
            self._keep_alive(event, now)
        if event & FAILED:
            return News.REFUSED
        if event == zmq.EVENT_DISCONNECTED:
            return News.DISCONNECTED
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            return News.CONNECTED
        return None

    def _keep_alive(self, event: int, now: float) -> None:
        """Sets the time by which libzmq must have done something."""
        # What is queued for a peer that is gone need not be waited for in the end.
        self.socket.linger = LINGER_MS if event == zmq.EVENT_HANDSHAKE_SUCCEEDED else 0
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.revive_at = math.inf
        elif event & FAILED:
            self.revive_at = self._not_before = now + REFUSED_SECONDS
        elif event == zmq.EVENT_DISCONNECTED:
            self.revive_at = max(now + REVIVE_SECONDS, self._not_before)
        else:
            self.revive_at = now + SILENT_SECONDS

    def renew(self) -> None:
        self.close()
        self._open()

    def close(self) -> None:
        self.socket.disable_monitor()
        self.socket.close()
        self.monitor.close(linger=0)
