"""The sender's half of the protocol, without sockets, clocks or threads.

An outbox holds the datapoints of one stream from the moment they are added until a receiver has
acknowledged them. Each receiver has a *lane*: a numbered sequence of the datapoints given to it. A
lane is sent in order, resent from any point the receiver asks for, and shortened by its
acknowledgements. When a receiver says goodbye, or has been out of reach for too long while another
is there, what is left on its lane goes back to the front of the queue.

All methods that need the time are told it; what is to be sent is fetched by `outgoing`.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from towerpack.dataflow.remote.link_options import LinkCounts, LinkOptions, Peer
from towerpack.dataflow.remote.messages import (
    MAX_REASON,
    Bye,
    Claim,
    Closed,
    Data,
    Leave,
    Message,
    Status,
    Take,
)

MAX_RECEIVERS = 4096  # at a time: a bound for whoever makes up names
REMEMBERED = 64  # receivers that are gone, and their lanes: a last message may still come


@dataclass(slots=True)
class _Item:
    index: int
    record: bytes
    checksum: int
    lane: int | None = None  # None while it waits for a lane
    acknowledged: bool = False


@dataclass
class _Lane:
    receiver: str
    number: int
    peer: Peer | None
    lost_at: float | None = None
    serial: int = -1  # of the receiver's last message
    base: int = 0  # the number of the first item that is not acknowledged
    items: deque[_Item] = field(default_factory=deque)
    sent: int = 0
    credit: int = 0
    missed: int = 0

    @property
    def end(self) -> int:
        return self.base + len(self.items)

    @property
    def room(self) -> int:
        return self.credit - len(self.items) if self.peer else 0


class Outbox:
    """At most `capacity` datapoints of one stream for each receiver, until acknowledged.

    No lane holds more than `capacity`, so that one whose receiver does not consume takes nothing
    from the others. Each datapoint is given to one receiver at a time, and to another only when the
    first is gone. With one receiver the order is the stream's.
    """

    def __init__(self, capacity: int, options: LinkOptions, counts: LinkCounts):
        self.stream = secrets.token_hex(8)
        self.capacity, self.options, self.counts = capacity, options, counts
        self.added = 0
        self._held = 0
        self._ended = self._said_done = False
        self._waiting: deque[_Item] = deque()
        self._lanes: dict[str, _Lane] = {}
        self._buried: dict[tuple[str, int], _Lane] = {}
        self._gone: deque[str] = deque(maxlen=REMEMBERED)  # receivers that have said goodbye
        self._to_tell: deque[tuple[Peer, str | None]] = deque()  # whom to send a status
        self._control: deque[tuple[Peer, Message]] = deque()
        self._links_up: set[int] = set()
        self._lanes_opened = self._serial = 0
        self._next_beat = 0.0

    # The producer's side.

    @property
    def has_room(self) -> bool:
        # As much again, but once only, for those out of reach: others go on meanwhile, and one that
        # dies again and again does not fill the memory.
        shares = min(len(self._lanes), self.receivers + 1)
        return self._held < self.capacity * max(1, shares)

    @property
    def complete(self) -> bool:
        """Whether the stream has ended and every datapoint of it was acknowledged."""
        return self._ended and not self._held

    @property
    def finished(self) -> bool:
        """Whether, besides, every receiver knows it, or is out of reach for good."""
        return self.complete and not self._lanes

    @property
    def receivers(self) -> int:
        """How many receivers can be reached now."""
        return sum(lane.peer is not None for lane in self._lanes.values())

    def add(self, record: bytes, checksum: int) -> None:
        self._waiting.append(_Item(self.added, record, checksum))
        self.added += 1
        self._held += 1

    def end(self) -> None:
        self._ended = True
        self._say_done_once()

    def leave(self, reason: str) -> None:
        """The stream stops before its end."""
        for lane in self._lanes.values():
            if lane.peer:
                self._control.append((lane.peer, Leave(self.stream, reason[:MAX_REASON])))

    def describe_wait(self) -> str:
        """What keeps the stream from going on, for the log."""
        if not self.receivers:
            return "a receiver; none is connected"
        return f"{self.receivers} receivers, which have {self._held} datapoints to consume"

    # The link's side.

    def connected(self, link: int) -> None:
        """A connecting socket has reached the other end, which waits to be spoken to."""
        self._links_up.add(link)
        self._tell(Peer(link), None)

    def disconnected(self, link: int, now: float) -> None:
        self._links_up.discard(link)
        for lane in self._lanes.values():
            if lane.peer and lane.peer.link == link:
                _lose(lane, now)

    def lost(self, peer: Peer, now: float) -> None:
        """A peer cannot be reached any more."""
        for lane in self._lanes.values():
            if lane.peer == peer:
                _lose(lane, now)

    def receive(self, peer: Peer, message: Message, payload: object, now: float) -> None:
        if isinstance(message, Take):
            self._receive_take(peer, message, now)
        elif isinstance(message, Bye):
            self._receive_bye(peer, message)
        else:
            self.counts.garbage += 1

    def tick(self, now: float) -> float:
        """Does what is due; gives the time at which more will be."""
        self._bury_overdue(now)
        if now >= self._next_beat:
            self._next_beat = now + self.options.heartbeat
            served = set()
            for lane in self._lanes.values():
                if lane.peer:
                    served.add(lane.peer.link)
                    self._tell(lane.peer, lane)
            for link in self._links_up - served:
                self._tell(Peer(link), None)
        return self._next_beat

    def outgoing(self, now: float) -> Iterator[tuple[Peer, Message, bytes | None]]:
        """What can be sent now: statuses first, then as many datapoints as there is credit."""
        while self._to_tell:
            yield self._next_status()
        while self._control:
            yield *self._control.popleft(), None
        for lane in list(self._lanes.values()):
            while lane.peer and lane.sent < lane.end:
                yield self._next_on(lane, lane.peer)
        while (free := self._lane_with_room()) and free.peer:
            item = self._next_waiting()
            if item is None:
                return
            item.lane = free.number
            free.items.append(item)
            yield self._next_on(free, free.peer)

    closed = True  # as soon as everything was said

    def close(self) -> None:
        """Whoever stops before the end has said so by `leave`."""

    # Within.

    def _receive_take(self, peer: Peer, take: Take, now: float) -> None:
        if take.stream != self.stream:
            self._tell(peer, None)
            return
        lane = self._lanes.get(take.receiver)
        if take.receiver in self._gone or (lane and take.serial <= lane.serial):
            return  # overtaken by a later message on another connection
        missed = 0
        if take.claim and take.claim.receiver != take.receiver:
            missed = self._settle_claim(take.claim)
        self._acknowledge_late(take.receiver, take.lane, take.consumed)
        if not peer.route:
            # One address has one receiver at a time: whoever was there before is gone.
            for other in list(self._lanes.values()):
                if other.receiver != take.receiver and _was_on(other, peer.link):
                    self._bury(other)
        if lane is None:
            if len(self._lanes) >= MAX_RECEIVERS:
                self.counts.strayed += 1
                return
            lane = self._open_lane(take.receiver, peer)
            lane.missed = missed
        elif take.lane == lane.number:
            self._acknowledge(lane, take.consumed)
            if take.resend or lane.peer != peer:
                self._rewind(lane, take.received)
        else:  # it has not heard of its lane yet
            self._rewind(lane, lane.base)
        known = take.lane == lane.number
        lane.peer, lane.lost_at, lane.serial = peer, None, take.serial
        lane.credit = min(take.credit, self.capacity)
        self._say_done_once()
        if not known or self.complete:
            self._tell(peer, lane)

    def _receive_bye(self, peer: Peer, bye: Bye) -> None:
        if bye.stream != self.stream:
            return
        self._gone.append(bye.receiver)
        lane = self._lanes.get(bye.receiver)
        if lane:
            if bye.lane == lane.number:
                self._acknowledge(lane, bye.consumed)
            self._bury(lane)
            self._say_done_once()
        if bye.answer:
            self._control.append((peer, Closed(bye.receiver, bye.stream)))

    def _open_lane(self, receiver: str, peer: Peer) -> _Lane:
        self._lanes_opened += 1
        lane = self._lanes[receiver] = _Lane(receiver, self._lanes_opened, peer)
        return lane

    def _acknowledge(self, lane: _Lane, consumed: int) -> None:
        if consumed > lane.end:
            self.counts.garbage += 1  # it cannot have consumed what it was never given
            return
        while lane.base < consumed:
            self._settle(lane.items.popleft())
            lane.base += 1
        lane.sent = max(lane.sent, lane.base)

    def _acknowledge_late(self, receiver: str, number: int | None, consumed: int) -> int:
        """Settles a lane that was taken away; gives how much of it had been acknowledged before."""
        lane = self._buried.get((receiver, number)) if number is not None else None
        if lane is None:
            return 0
        for item in list(lane.items)[: max(0, consumed - lane.base)]:
            if item.acknowledged:
                continue
            if item.lane is None:
                self._settle(item)  # it still waits: nobody else has it, nobody needs it
            else:
                self.counts.duplicates += 1
        return lane.base

    def _settle(self, item: _Item) -> None:
        item.acknowledged = True
        item.record = b""  # buried lanes keep the item, not its bytes
        self._held -= 1
        self.counts.datapoints += 1

    def _settle_claim(self, claim: Claim) -> int:
        """Acknowledges what a predecessor had consumed, and gives on the rest."""
        lane = self._lanes.get(claim.receiver)
        if lane and lane.number == claim.lane:
            already = lane.base
            self._acknowledge(lane, claim.consumed)
            self._bury(lane)
        else:
            already = self._acknowledge_late(claim.receiver, claim.lane, claim.consumed)
        return max(0, already - claim.consumed)

    def _rewind(self, lane: _Lane, received: int) -> None:
        self.counts.resends += lane.sent > received
        lane.sent = min(max(received, lane.base), lane.sent)

    def _bury(self, lane: _Lane) -> None:
        """Takes a lane away; what is left on it goes back to the front of the queue."""
        del self._lanes[lane.receiver]
        for item in lane.items:
            item.lane = None
        merged = sorted([*lane.items, *self._waiting], key=lambda item: item.index)
        self._waiting = deque(merged)
        self._buried[lane.receiver, lane.number] = lane
        while len(self._buried) > REMEMBERED:
            del self._buried[next(iter(self._buried))]

    def _bury_overdue(self, now: float) -> None:
        for lane in list(self._lanes.values()):
            if lane.lost_at is None or now - lane.lost_at < self.options.peer_timeout:
                continue
            # Kept while nobody else is there: the receiver may come back, and say what it has
            # consumed. Once given to another, that would be too late.
            if not lane.items or self.receivers:
                self._bury(lane)

    def _lane_with_room(self) -> _Lane | None:
        """The least busy of the receivers that can take one more."""
        best = None
        for lane in self._lanes.values():
            if lane.room > 0 and (best is None or len(lane.items) < len(best.items)):
                best = lane
        return best

    def _next_waiting(self) -> _Item | None:
        while self._waiting:
            item = self._waiting.popleft()
            if not item.acknowledged:
                return item
        return None

    def _next_on(self, lane: _Lane, peer: Peer) -> tuple[Peer, Message, bytes | None]:
        item = lane.items[lane.sent - lane.base]
        message = Data(
            self.stream, lane.number, lane.sent, item.index, len(item.record), item.checksum
        )
        lane.sent += 1
        return peer, message, item.record

    def _tell(self, peer: Peer, lane: _Lane | None) -> None:
        self._to_tell.append((peer, lane.receiver if lane else None))

    def _next_status(self) -> tuple[Peer, Message, None]:
        # Made when it is sent: it must count exactly the datapoints that went before it.
        peer, receiver = self._to_tell.popleft()
        lane = self._lanes.get(receiver) if receiver is not None else None
        self._serial += 1
        status = Status(
            self._serial,
            self.stream,
            lane.receiver if lane else "",
            lane.number if lane else None,
            lane.base if lane else 0,
            lane.sent if lane else 0,
            lane.missed if lane else 0,
            self.complete,
        )
        return peer, status, None

    def _say_done_once(self) -> None:
        if self.complete and not self._said_done:
            self._said_done = True
            for lane in self._lanes.values():
                if lane.peer:
                    self._tell(lane.peer, lane)


def _lose(lane: _Lane, now: float) -> None:
    lane.peer, lane.lost_at = None, now


def _was_on(lane: _Lane, link: int) -> bool:
    # A lost lane of a sender that connects has no peer any more; it has but the one link.
    return lane.peer is None or lane.peer.link == link
