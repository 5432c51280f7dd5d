"""The receiver's half of the protocol, without sockets, clocks or threads.

An inbox takes the datapoints of any number of senders, each stream in the order of its lane, hands
them out one by one, and tells each sender what was consumed and how much more may come. What does
not continue a lane exactly is dropped: a gap is asked for again, a repetition was here before.

All methods that need the time are told it; what is to be sent is fetched by `outgoing`.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from towerpack.core import codec, logger
from towerpack.dataflow.remote.link_options import LinkCounts, LinkOptions, Peer
from towerpack.dataflow.remote.messages import (
    Bye,
    Claim,
    Closed,
    Data,
    Leave,
    Message,
    Status,
    Take,
)

# A fast consumer's acknowledgements go together: nobody waits for them, and each is a message.
ACKNOWLEDGE_SHARE = 0.25  # of the credit
ACKNOWLEDGE_SECONDS = 0.005
MAX_STREAMS = 1024  # of senders, present and past: a bound for whoever makes up names
MAX_CLAIMS = 256  # in a saved state: the latest; the senders of older ones are long gone


@dataclass
class _Stream:
    name: str
    peer: Peer | None
    lost_at: float | None = None
    serial: int = -1  # of the sender's last status
    lane: int | None = None
    received: int = 0
    consumed: int = 0
    asked_at: float | None = None  # when `received` was last asked for again; None since progress
    resend: bool = False
    tell: bool = True
    told: int = 0  # how much of `consumed` the sender has been told
    told_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A datapoint that waits for the consumer, or why it could not be decoded."""

    stream: _Stream
    lane: int
    seq: int
    index: int
    link: int
    datapoint: Any
    error: codec.DecodeError | None = None


class Inbox:
    """At most about `capacity` datapoints of several streams, until the consumer takes them.

    A datapoint counts as consumed, and is acknowledged, when the consumer comes back for the next
    one: a receiver that dies with it in its hands has lost nothing.
    """

    def __init__(self, capacity: int, options: LinkOptions, counts: LinkCounts, senders: int = 1):
        self.receiver = secrets.token_hex(8)
        self.capacity, self.options, self.counts = capacity, options, counts
        self.senders = senders
        self._streams: dict[str, _Stream] = {}
        self._ready: deque[Entry] = deque()
        self._handed: Entry | None = None
        self._claims: dict[str, Claim] = {}
        self._control: deque[tuple[Peer, Message]] = deque()
        self._links_up: set[int] = set()
        self._finished: deque[str] = deque(maxlen=MAX_STREAMS)
        self._finished_count = 0
        self._serial = 0
        self._next_beat = 0.0
        self._closing: dict[str, tuple[Peer, Bye]] | None = None  # who has not confirmed it yet

    # The consumer's side.

    def pop(self) -> Entry | None:
        """The next datapoint, if there is one; the one before is acknowledged."""
        if self._handed:
            self._consume(self._handed)
        self._handed = self._ready.popleft() if self._ready else None
        return self._handed

    def acknowledgement_due(self, now: float) -> bool:
        """Whether some sender is to be told what was consumed."""
        share = self._share()
        return any(self._acknowledgement_due(s, share, now) for s in self._streams.values())

    @property
    def has_datapoint(self) -> bool:
        return bool(self._ready)

    @property
    def live_senders(self) -> int:
        return sum(stream.peer is not None for stream in self._streams.values())

    def describe_wait(self) -> str:
        """What keeps datapoints from coming, for the log."""
        if not self.live_senders:
            return "a sender; none is connected"
        return f"{self.live_senders} connected senders, which send nothing"

    def ended(self, now: float) -> bool:
        """Whether all senders have ended for good, and everything they sent was handed out."""
        if self._ready or self._finished_count < self.senders:
            return False
        return not any(
            stream.lost_at is None or now - stream.lost_at < self.options.peer_timeout
            for stream in self._streams.values()
        )

    def state(self) -> dict[str, list[Any]]:
        """For each stream: this receiver, its lane there, and how much of it was consumed."""
        claims = dict(self._claims)
        for name, stream in self._streams.items():
            if stream.lane is not None:
                claims[name] = Claim(self.receiver, stream.lane, stream.consumed)
        if self._handed and self._handed.lane == self._handed.stream.lane:
            name = self._handed.stream.name
            claims[name] = Claim(self.receiver, self._handed.lane, self._handed.seq + 1)
        latest = list(claims.items())[-MAX_CLAIMS:]
        return {name: [claim.receiver, claim.lane, claim.consumed] for name, claim in latest}

    def restore(self, state: dict[str, list[Any]]) -> None:
        """Begins as the successor of the receiver whose state this is."""
        self._claims = {name: Claim(*claim) for name, claim in state.items()}

    def close(self) -> None:
        """Says goodbye to every sender: what was not handed out is theirs again."""
        if self._closing is not None:
            return
        if self._handed:
            self._consume(self._handed)
            self._handed = None
        self._closing = {
            name: (stream.peer, self._bye(stream, answer=True))
            for name, stream in self._streams.items()
            if stream.peer
        }
        self._control.extend(self._closing.values())
        self._streams.clear()
        self._ready.clear()

    @property
    def closed(self) -> bool:
        """Whether every sender has heard the goodbye."""
        return not self._closing

    # The link's side.

    def connected(self, link: int) -> None:
        """A connecting socket has reached the other end, which waits to be spoken to."""
        self._links_up.add(link)
        self._next_beat = 0.0

    def disconnected(self, link: int, now: float) -> None:
        self._links_up.discard(link)
        for stream in self._streams.values():
            if stream.peer and stream.peer.link == link:
                _lose(stream, now)

    def lost(self, peer: Peer, now: float) -> None:
        """A peer cannot be reached any more."""
        for stream in self._streams.values():
            if stream.peer == peer:
                _lose(stream, now)

    def receive(self, peer: Peer, message: Message, payload: Any, now: float) -> None:
        if self._closing is not None:
            self._receive_while_closing(self._closing, peer, message)
        elif isinstance(message, Data):
            self._receive_data(peer, message, payload, now)
        elif isinstance(message, Status):
            self._receive_status(peer, message, now)
        elif isinstance(message, Leave):
            self._receive_leave(message, now)
        elif not isinstance(message, Closed):
            self.counts.garbage += 1

    def tick(self, now: float) -> float:
        """Does what is due; gives the time at which more will be."""
        if now >= self._next_beat:
            self._next_beat = now + self.options.heartbeat
            for stream in self._streams.values():
                stream.tell = True
            silent = self._links_up - {s.peer.link for s in self._streams.values() if s.peer}
            if self._closing is not None:
                self._control.extend(self._closing.values())
                silent = set()
            for link in silent:
                self._control.append((Peer(link), Take(self._next_serial(), self.receiver)))
        return self._next_beat

    def outgoing(self, now: float) -> Iterator[tuple[Peer, Message, None]]:
        """What is to be sent now."""
        while self._control:
            yield *self._control.popleft(), None
        share = self._share()
        for stream in list(self._streams.values()):
            if stream.peer and (stream.tell or self._acknowledgement_due(stream, share, now)):
                yield stream.peer, self._take(stream, share), None
                stream.tell = stream.resend = False
                stream.told, stream.told_at = stream.consumed, now

    # Within.

    def _receive_while_closing(
        self, closing: dict[str, tuple[Peer, Bye]], peer: Peer, message: Message
    ) -> None:
        if isinstance(message, Closed) and message.receiver == self.receiver:
            closing.pop(message.stream, None)
        elif isinstance(message, Status) and message.stream in closing:
            old, bye = closing[message.stream]
            if peer != old:  # connected anew
                closing[message.stream] = peer, bye
                self._control.append((peer, bye))

    def _receive_status(self, peer: Peer, status: Status, now: float) -> None:
        stream = self._streams.get(status.stream)
        if stream is None:
            if status.stream in self._finished:
                self._control.append((peer, Bye(self.receiver, status.stream, None, 0)))
                return
            stream = self._meet(status.stream, peer)
            if stream is None:
                return
        if status.serial <= stream.serial:
            return  # overtaken by a later one on another connection
        stream.serial = status.serial
        self._settle_peer(stream, peer, now)
        if status.lane is None or status.receiver != self.receiver:
            stream.tell = True
        elif stream.lane is None or status.lane > stream.lane:
            self._begin_lane(stream, status)
        elif status.lane == stream.lane and status.sent > stream.received:
            # Messages of one connection keep their order: what was sent before this is lost.
            self._ask_again(stream, now)
        if status.done:
            self._finish(stream)

    def _meet(self, name: str, peer: Peer) -> _Stream | None:
        if len(self._streams) >= MAX_STREAMS:
            self._forget_one()
        if len(self._streams) >= MAX_STREAMS:
            self.counts.strayed += 1
            return None
        stream = self._streams[name] = _Stream(name, peer)
        # The others' shares are smaller now; they are to know it before they send more.
        for other in self._streams.values():
            other.tell = True
        return stream

    def _forget_one(self) -> None:
        """Makes room in the table: the sender that was lost first and has nothing here."""
        waiting = {entry.stream.name for entry in self._ready}
        lost = {
            name: stream.lost_at
            for name, stream in self._streams.items()
            if stream.lost_at is not None and name not in waiting
        }
        if lost:
            del self._streams[min(lost, key=lambda name: lost[name])]

    def _settle_peer(self, stream: _Stream, peer: Peer, now: float) -> None:
        if stream.peer == peer:
            return
        stream.peer, stream.lost_at = peer, None
        stream.tell = stream.resend = True  # whatever was under way on the old connection is lost
        if not peer.route:
            # One address has one sender at a time: whoever was there before is gone.
            for other in self._streams.values():
                if other is not stream and other.peer == peer:
                    _lose(other, now)

    def _begin_lane(self, stream: _Stream, status: Status) -> None:
        if stream.lane is not None:
            # The old lane was taken from us: its datapoints are someone else's now.
            self._ready = deque(entry for entry in self._ready if entry.stream is not stream)
            logger.warning(
                "a sender had given this receiver up; what it had not acknowledged comes again"
            )
        if status.missed:
            self.counts.missed += status.missed
            logger.warning(
                "the restored state is older than what was last acknowledged: %d datapoints are "
                "not repeated",
                status.missed,
            )
        self._claims.pop(stream.name, None)
        stream.lane, stream.received, stream.consumed = status.lane, status.base, status.base
        stream.told, stream.asked_at, stream.tell = status.base, None, True

    def _receive_data(self, peer: Peer, data: Data, payload: Any, now: float) -> None:
        stream = self._streams.get(data.stream)
        if stream is None or stream.lane != data.lane or stream.peer != peer:
            self.counts.strayed += 1
        elif data.seq < stream.received:
            self.counts.duplicates += 1
        elif data.seq > stream.received:
            self._ask_again(stream, now)
        elif stream.received - stream.consumed >= self.capacity:
            self.counts.overrun += 1
        else:
            self._accept(stream, data, payload, now)

    def _accept(self, stream: _Stream, data: Data, payload: Any, now: float) -> None:
        error = datapoint = None
        fits = len(payload) == data.length and codec.checksum_of(payload) == data.checksum
        try:
            if fits:
                datapoint = codec.decode(payload)
        except codec.DamagedRecord:
            fits = False
        except codec.DecodeError as refused:
            # Just what the sender sent, so sending it again would not help: the consumer is told.
            error = refused
        if not fits:
            self.counts.damaged += 1
            self._ask_again(stream, now)
            return
        link = stream.peer.link if stream.peer else 0
        entry = Entry(stream, data.lane, data.seq, data.index, link, datapoint, error)
        self._ready.append(entry)
        stream.received += 1
        stream.asked_at = None

    def _receive_leave(self, leave: Leave, now: float) -> None:
        stream = self._streams.get(leave.stream)
        if stream:
            logger.warning("a sender stopped before the end of its stream: %s", leave.reason)
            _lose(stream, now)

    def _ask_again(self, stream: _Stream, now: float) -> None:
        # Once: until the answer comes, everything under way shows the same gap.
        if stream.asked_at is None or now - stream.asked_at >= self.options.heartbeat:
            stream.asked_at = now
            stream.tell = stream.resend = True
            self.counts.resends += 1

    def _finish(self, stream: _Stream) -> None:
        self._finished.append(stream.name)
        self._finished_count += 1
        self._say_bye(stream)
        del self._streams[stream.name]

    def _say_bye(self, stream: _Stream) -> None:
        if stream.peer:
            self._control.append((stream.peer, self._bye(stream)))

    def _bye(self, stream: _Stream, answer: bool = False) -> Bye:
        return Bye(self.receiver, stream.name, stream.lane, stream.consumed, answer)

    def _consume(self, entry: Entry) -> None:
        self.counts.datapoints += 1
        stream = entry.stream
        if stream.lane == entry.lane:
            stream.consumed = entry.seq + 1

    def _acknowledgement_due(self, stream: _Stream, share: int, now: float) -> bool:
        """Whether to tell the sender now, or to wait until there is more to tell."""
        if stream.consumed == stream.told or stream.peer is None:
            return False
        return (
            not self._ready
            or stream.consumed - stream.told >= share * ACKNOWLEDGE_SHARE
            or now - stream.told_at >= ACKNOWLEDGE_SECONDS
        )

    def _share(self) -> int:
        """How many datapoints each sender may have under way."""
        return max(1, self.capacity // max(1, self.live_senders))

    def _take(self, stream: _Stream, share: int) -> Take:
        claim = self._claims.get(stream.name) if stream.lane is None else None
        return Take(
            self._next_serial(),
            self.receiver,
            stream.name,
            stream.lane,
            stream.consumed,
            stream.received,
            share,
            stream.resend,
            claim,
        )

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial


def _lose(stream: _Stream, now: float) -> None:
    stream.peer, stream.lost_at = None, now
