"""What both ends share: options, counts, the three messages with their bytes, and `End`.

A message is one frame: a mark, a checksum, and a msgpack array of fixed types. `Data` is followed
by a second frame, the datapoint's record (`core.codec`), which has its own checksum. `unpack`
refuses everything else.
"""

from __future__ import annotations

import abc
import struct
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import google_crc32c
import msgspec

DEFAULT_MAX_MESSAGE = 256 << 20  # a batch of 256 float32 images of 224x224x3 takes 154 MB
MARK = b"TPR2"  # the protocol and its version
MAX_FRAME = 8192  # the longest message, a `Status` with a reason, is shorter
MAX_REASON = 1000

_CHECKSUM = struct.Struct("<I")
_BODY = len(MARK) + _CHECKSUM.size

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
    strayed: int = 0  # messages for a session that does not exist, or no longer
    overrun: int = 0  # datapoints beyond the credit
    missed: int = 0  # acknowledged after the restored state was saved; they are not sent again
    refused: int = 0  # connections whose handshake failed: not ZeroMQ, or a wrong key
    disconnects: int = 0  # connections that ended, including after a frame over `max_message`


class Status(
    msgspec.Struct, tag="status", frozen=True, array_like=True, forbid_unknown_fields=True
):
    """Sender to receiver: how far your session is. The receiver finds out what it has lost.

    Without a `session` it only introduces the stream. The first `acknowledged` datapoints of the
    session are acknowledged, and the first `sent` were sent before this message.
    """

    serial: Number  # counts the messages of this end, so that a late one is recognized
    stream: Name
    session: Name = ""
    acknowledged: Number = 0
    sent: Number = 0
    over: bool = False  # the session has ended; its other datapoints belong to other receivers
    done: bool = False  # the stream has ended, and all of it is acknowledged
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON)] = ""  # why the sender stops early


class Data(msgspec.Struct, tag="data", frozen=True, array_like=True, forbid_unknown_fields=True):
    """Sender to receiver: datapoint `seq` of the session, which is datapoint `index` of the stream.

    `checksum` is that of the record in the next frame.
    """

    stream: Name
    session: Name
    seq: Number
    index: Number
    checksum: Number


class Take(msgspec.Struct, tag="take", frozen=True, array_like=True, forbid_unknown_fields=True):
    """Receiver to sender: what I have received and consumed, and how much more I can hold.

    Without a `stream` it only asks who is there.
    """

    serial: Number
    stream: Name = ""
    session: Name = ""
    consumed: Number = 0  # this acknowledges them
    received: Number = 0
    credit: Number = 0  # how many datapoints may be on their way or held beyond the consumed ones
    resend: bool = False  # send everything from `received` on again
    closing: bool = False  # the session ends; confirm it with an `over` status


Message = Status | Data | Take

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


class BadMessage(ValueError):
    """A frame that is not a message of this protocol, or is damaged."""


def pack(message: Message) -> bytes:
    """Returns the frame of a message.

    >>> unpack(pack(Take(1, "stream")))
    Take(serial=1, stream='stream', session='', consumed=0, received=0, credit=0, resend=False, \
closing=False)
    """
    body = _encoder.encode(message)
    return MARK + _CHECKSUM.pack(google_crc32c.value(body)) + body


def unpack(frame: bytes) -> Message:
    """Returns the message of a frame, or raises BadMessage."""
    if len(frame) > MAX_FRAME or frame[: len(MARK)] != MARK:
        raise BadMessage(f"expected a frame that begins with {MARK!r}, received {frame[:16]!r}")
    body = frame[_BODY:]
    if frame[len(MARK) : _BODY] != _CHECKSUM.pack(google_crc32c.value(body)):
        raise BadMessage("the checksum is wrong")
    try:
        return _decoder.decode(body)
    except Exception as error:  # also ValueError: of text that is not UTF-8
        raise BadMessage(f"malformed message: {error}") from error


class Peer(NamedTuple):
    """The other end of a connection: the number of our socket, and the ROUTER's address of it.

    The address is empty for a socket that connects, because that has one other end.
    """

    link: int
    route: bytes = b""


@dataclass(eq=False)
class Channel:
    """What an end knows about one session with a peer."""

    peer: Peer | None  # None while it is unreachable
    lost_at: float | None = None  # when it became unreachable
    serial: int = -1  # of the last message from the peer
    tell: bool = True  # whether the peer is due a message

    def lose(self, now: float) -> None:
        self.peer, self.lost_at = None, now


ChannelT = TypeVar("ChannelT", bound=Channel)


class End(abc.ABC, Generic[ChannelT]):
    """One end's half of the protocol, without sockets, clocks or threads.

    The caller passes the time, and sends what `outgoing` yields.
    """

    def __init__(self, capacity: int, options: LinkOptions, counts: LinkCounts):
        self.capacity, self.options, self.counts = capacity, options, counts
        self._replies: deque[tuple[Peer, Message]] = deque()
        self._links: set[int] = set()  # connecting sockets that are connected
        self._serial = 0
        self._next_beat = 0.0

    @abc.abstractmethod
    def channels(self) -> Collection[ChannelT]:
        """The open sessions."""

    @abc.abstractmethod
    def summary(self, channel: ChannelT | None) -> Message:
        """The message that tells the peer how far the session is; without one, who we are."""

    @abc.abstractmethod
    def receive(self, peer: Peer, message: Message, payload: Any, now: float) -> None: ...

    def connected(self, link: int) -> None:
        """A connecting socket has reached the other end, which waits for the first message."""
        self._links.add(link)
        self._next_beat = 0.0

    def lost(self, peer: Peer, now: float) -> None:
        """A peer has become unreachable."""
        if not peer.route:
            self._links.discard(peer.link)
        for channel in self.channels():
            if channel.peer == peer:
                channel.lose(now)

    def tick(self, now: float) -> float:
        """Does what is due by time; returns when the next heartbeat is."""
        if now >= self._next_beat:
            self._next_beat = now + self.options.heartbeat
            for channel in self.channels():
                channel.tell = True
            met = {channel.peer.link for channel in self.channels() if channel.peer}
            for link in self._links - met:
                self._replies.append((Peer(link), self.summary(None)))
        return self._next_beat

    def outgoing(self) -> Iterator[tuple[Peer, Message, bytes | None]]:
        """Yields what can be sent now: the peer, the message, and the record after it."""
        while self._replies:
            yield *self._replies.popleft(), None
        for channel in list(self.channels()):
            if channel.tell and channel.peer:
                channel.tell = False
                yield channel.peer, self.summary(channel), None

    def close(self) -> None:
        """Begins to close every session."""

    @property
    def closed(self) -> bool:
        """Whether every peer knows that this end closes."""
        return True

    @property
    def reachable(self) -> int:
        """The number of peers that can be reached now."""
        return sum(channel.peer is not None for channel in self.channels())

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial
