"""What both ends share: options, counters, the three messages, and the base class `End`.

A message is one frame: a mark with the version, a checksum, and a msgpack array of fixed types.
`Data` is followed by a second frame, the record of the datapoint (`core.codec`). `unpack` rejects
everything else.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import google_crc32c
import msgspec

from towerpack.dataflow.remote.curve_keys import CurveKeys, check_address

DEFAULT_MAX_MESSAGE = 256 << 20  # a batch of 256 float32 images of 224x224x3 takes 154 MB
MARK = b"TPR3"  # the last byte is the version of the protocol
MAX_FRAME = 8192  # bytes; the longest message, a `Status` with a reason, is shorter
MAX_REASON = 1000  # characters
SILENT_BEATS = 3  # heartbeats without a message after which a peer counts as unreachable for now

Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Name = Annotated[str, msgspec.Meta(max_length=64)]


@dataclass(frozen=True)
class LinkOptions:
    """Limits of a remote link; the defaults suit a data centre.

    Args:
        max_message: the largest datapoint in bytes. A peer that announces a larger frame is
            disconnected before any of it is stored.
        heartbeat: seconds between two status messages. A connection that is silent for ten of
            these intervals is closed and opened again.
        peer_timeout: seconds after which the unacknowledged datapoints of an unreachable receiver
            may be sent to another receiver.
    """

    max_message: int = DEFAULT_MAX_MESSAGE
    heartbeat: float = 1.0
    peer_timeout: float = 30.0

    def __post_init__(self) -> None:
        for name in ("max_message", "heartbeat", "peer_timeout"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"expected a positive {name}, received {value!r}")


@dataclass
class LinkCounts:
    """What one end of a link has counted so far."""

    datapoints: int = 0  # delivered to the consumer, or acknowledged to the sender
    resends: int = 0  # requests to send again what was lost or damaged on the way
    duplicates: int = 0  # datapoints that arrived, or were consumed, a second time
    damaged: int = 0  # datapoints with a wrong checksum
    garbage: int = 0  # frames that are not messages of the protocol
    strayed: int = 0  # messages for a session that does not exist, or no longer exists
    overrun: int = 0  # datapoints beyond the credit
    missed: int = 0  # acknowledged after the restored state was saved; they are not sent again
    refused: int = 0  # connections whose handshake failed: not ZeroMQ, or a wrong key
    disconnects: int = 0  # connections that ended, including after a frame over `max_message`


@dataclass
class Endpoints:
    """The addresses and settings of one end, and what it counts."""

    addresses: Sequence[str]
    bind: bool
    capacity: int
    options: LinkOptions
    keys: CurveKeys | None = None
    counts: LinkCounts = field(default_factory=LinkCounts)

    def __post_init__(self) -> None:
        if isinstance(self.capacity, bool) or not isinstance(self.capacity, int):
            raise TypeError(f"expected hwm as an integer, received {self.capacity!r}")
        if self.capacity < 1:
            raise ValueError(f"expected a positive hwm, received {self.capacity}")
        for address in self.addresses:
            check_address(address, self.bind, self.keys)


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


class Status(_Message, frozen=True, tag="status"):
    """Sender to receiver: the state of your session, from which you see what you have lost.

    It answers each `Request`. Without a `session` it only introduces the stream. The first
    `acknowledged` datapoints of the session are acknowledged, and the first `sent` were sent before
    this message.
    """

    stream: Name
    session: Name = ""
    acknowledged: Number = 0
    sent: Number = 0
    over: bool = False  # the session has ended; its other datapoints belong to other receivers
    done: bool = False  # the stream has ended, and all of it is acknowledged
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON)] = ""  # why the sender stops early


class Data(_Message, frozen=True, tag="data"):
    """Sender to receiver: datapoint `seq` of the session, which is datapoint `index` of the stream.

    Its record is the next frame.
    """

    stream: Name
    session: Name
    seq: Number
    index: Number


class Request(_Message, frozen=True, tag="request"):
    """Receiver to sender: what I have received and consumed, and how much more I can hold.

    Without a `stream` it asks the sender to introduce itself.
    """

    stream: Name = ""
    session: Name = ""
    consumed: Number = 0  # this acknowledges them
    received: Number = 0
    credit: Number = 0  # how many datapoints may be on their way or held beyond the consumed ones
    resend: bool = False  # send everything from `received` on again
    closing: bool = False  # the session ends; confirm it with an `over` status


Message = Status | Data | Request

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


class BadMessage(ValueError):
    """A frame that is not a message of this protocol, or is damaged."""


def pack(message: Message) -> bytes:
    """Returns the frame of a message.

    >>> unpack(pack(Request("stream")))
    Request(stream='stream', session='', consumed=0, received=0, credit=0, resend=False, \
closing=False)
    """
    body = _encoder.encode(message)
    return MARK + google_crc32c.value(body).to_bytes(4, "little") + body


def unpack(frame: bytes) -> Message:
    """Returns the message of a frame, or raises BadMessage."""
    mark, checksum, body = frame[:4], frame[4:8], frame[8:]
    if mark != MARK and mark[:3] == MARK[:3]:
        raise BadMessage(
            f"expected version {MARK[3:].decode()} of the protocol, received version "
            f"{mark[3:].decode(errors='replace')}: install the same towerpack at both ends"
        )
    if mark != MARK or len(frame) > MAX_FRAME:
        raise BadMessage(f"expected a frame that begins with {MARK!r}, received {frame[:16]!r}")
    if checksum != google_crc32c.value(body).to_bytes(4, "little"):
        raise BadMessage("the checksum is wrong")
    try:
        return _decoder.decode(body)
    except Exception as error:  # also ValueError: of text that is not UTF-8
        raise BadMessage(f"malformed message: {error}") from error


class Peer(NamedTuple):
    """The other end of a connection: the number of our socket, and the ROUTER's name for it.

    The name is empty for a socket that connects, because that has only one peer.
    """

    link: int
    route: bytes = b""


@dataclass(eq=False)
class Session:
    """What an end knows about one session: datapoints numbered from 0, between two ends."""

    name: str
    peer: Peer
    heard_at: float  # when the last message of the peer arrived


S = TypeVar("S", bound=Session)


class End(abc.ABC, Generic[S]):
    """One end's half of the protocol, without sockets, clocks or threads.

    The caller keeps `now` up to date, passes what arrives to `receive`, and sends what `outgoing`
    yields. An end that connects introduces itself at each address with every heartbeat.
    """

    waits_for = ""  # for log messages

    def __init__(self, endpoints: Endpoints):
        self.endpoints, self.counts = endpoints, endpoints.counts
        self.wake: Callable[[], None] = lambda: None  # makes the caller send what is outgoing
        self.now = self.next_beat = 0.0
        self.sessions: dict[str, S] = {}  # the open ones
        self._replies: list[tuple[Peer, Message]] = []

    @abc.abstractmethod
    def introduction(self) -> Message: ...

    @abc.abstractmethod
    def receive(self, peer: Peer, message: Message, record: Any) -> None: ...

    @abc.abstractmethod
    def close(self) -> None:
        """Begins to close. The caller then waits until no session is open."""

    def outgoing(self) -> Iterator[tuple[Peer, Message, bytes | None]]:
        """Yields what can be sent now: the peer, the message, and the record after it."""
        if self.now >= self.next_beat:
            self.next_beat = self.now + self.endpoints.options.heartbeat
            if not self.endpoints.bind:
                for link in range(len(self.endpoints.addresses)):
                    yield Peer(link), self.introduction(), None
        replies, self._replies = self._replies, []
        for peer, reply in replies:
            yield peer, reply, None

    @property
    def reachable(self) -> int:
        """The number of open sessions whose peer sends its heartbeats."""
        return sum(self.hears(session) for session in self.sessions.values())

    def hears(self, session: S) -> bool:
        return self.now - session.heard_at < SILENT_BEATS * self.endpoints.options.heartbeat

    def timed_out(self, session: S) -> bool:
        return self.now - session.heard_at >= self.endpoints.options.peer_timeout
