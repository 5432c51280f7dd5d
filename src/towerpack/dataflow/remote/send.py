"""Sending a flow to receivers in other processes or on other machines."""

from __future__ import annotations

import contextlib
import secrets
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from towerpack.core import codec
from towerpack.dataflow.base import DataFlow, DataFlowTerminated, as_flow
from towerpack.dataflow.remote.curve_keys import CurveKeys
from towerpack.dataflow.remote.link import Endpoints, Pump
from towerpack.dataflow.remote.protocol import (
    MAX_REASON,
    Channel,
    Data,
    End,
    LinkCounts,
    LinkOptions,
    Message,
    Peer,
    Status,
    Take,
)

FORMATS = (None, "zmq_ops")  # one format; the second name is what old scripts pass
MAX_SESSIONS = 4096  # open at a time: bounds the memory that invented names can take
REMEMBERED = 64  # sessions that are over: a last acknowledgement may still arrive


@dataclass(slots=True, eq=False)
class _Item:
    index: int
    record: bytes
    owner: _Session | None = None  # the session that it was given to; None while it waits


@dataclass(eq=False)
class _Session(Channel):
    """The datapoints given to one receiver: sent in order, kept until they are acknowledged."""

    name: str = ""
    base: int = 0  # the number of datapoints that are acknowledged
    items: deque[_Item] = field(default_factory=deque)  # the others
    sent: int = 0
    credit: int = 0

    @property
    def end(self) -> int:
        return self.base + len(self.items)


class Outbox(End[_Session]):
    """The sender's half of the protocol: holds each datapoint until a receiver acknowledges it.

    No session holds more than `capacity` datapoints, so a receiver that does not consume takes
    nothing from the others. A datapoint belongs to one session at a time. It passes to another one
    only when its session is over.
    """

    def __init__(self, capacity: int, options: LinkOptions, counts: LinkCounts):
        super().__init__(capacity, options, counts)
        self.stream = secrets.token_hex(8)
        self.added = 0
        self._held = 0  # datapoints that are not acknowledged
        self._ended = self._announced = False
        self._waiting: deque[_Item] = deque()
        self._open: dict[str, _Session] = {}
        self._over: dict[str, _Session] = {}

    def channels(self) -> Collection[_Session]:
        return self._open.values()

    def summary(self, channel: _Session | None) -> Message:
        name, base, sent = (channel.name, channel.base, channel.sent) if channel else ("", 0, 0)
        return Status(self.next_serial(), self.stream, name, base, sent, done=self.complete)

    # The producer's side.

    @property
    def has_room(self) -> bool:
        # All unreachable receivers together have one share: the reachable ones are not held up, and
        # a receiver that dies again and again does not fill the memory.
        shares = min(len(self._open), self.reachable + 1)
        return self._held < self.capacity * max(1, shares)

    @property
    def complete(self) -> bool:
        """Whether the stream has ended and all of it is acknowledged."""
        return self._ended and not self._held

    @property
    def finished(self) -> bool:
        """Whether the stream is complete and every receiver knows it, or has timed out."""
        return self.complete and not self._open

    def add(self, record: bytes) -> None:
        self._waiting.append(_Item(self.added, record))
        self.added += 1
        self._held += 1

    def end(self) -> None:
        self._ended = True

    def leave(self, reason: str) -> None:
        """Tells the receivers why the stream stops before its end."""
        for session in self._open.values():
            if session.peer:
                serial = self.next_serial()
                status = Status(serial, self.stream, session.name, reason=reason[:MAX_REASON])
                self._replies.append((session.peer, status))

    def describe_wait(self) -> str:
        """What the sender waits for, for the log."""
        if not self.reachable:
            return "a receiver; none is connected"
        return f"{self.reachable} receivers, which have {self._held} datapoints to consume"

    # The link's side.

    def tick(self, now: float) -> float:
        for session in list(self._open.values()):
            overdue = session.lost_at is not None and (
                now - session.lost_at >= self.options.peer_timeout
            )
            # Without another receiver it is kept: its own may come back, and know what it consumed.
            if overdue and (self.reachable or not session.items):
                self._end_session(session)
        if self.complete and not self._announced:
            self._announced = True
            self._next_beat = 0.0
        return super().tick(now)

    def outgoing(self) -> Iterator[tuple[Peer, Message, bytes | None]]:
        yield from super().outgoing()
        for session in list(self._open.values()):
            while session.peer and session.sent < session.end:
                yield self._next_of(session, session.peer)
        while self._waiting:
            rooms = [s for s in self._open.values() if s.peer and len(s.items) < s.credit]
            if not rooms:
                return
            session = min(rooms, key=lambda session: len(session.items))
            item = self._waiting.popleft()
            item.owner = session
            session.items.append(item)
            if session.peer:
                yield self._next_of(session, session.peer)

    def _next_of(self, session: _Session, peer: Peer) -> tuple[Peer, Message, bytes]:
        item = session.items[session.sent - session.base]
        checksum = codec.checksum_of(item.record)
        data = Data(self.stream, session.name, session.sent, item.index, checksum)
        session.sent += 1
        return peer, data, item.record

    def receive(self, peer: Peer, message: Message, payload: object, now: float) -> None:
        if not isinstance(message, Take):
            self.counts.garbage += 1
        elif message.stream != self.stream:
            self._replies.append((peer, self.summary(None)))
        else:
            self._receive_take(peer, message)

    def _receive_take(self, peer: Peer, take: Take) -> None:
        session = self._open.get(take.session) or self._over.get(take.session)
        if session is None and not take.closing and not take.received:
            if len(self._open) >= MAX_SESSIONS:
                self.counts.strayed += 1
                return
            session = self._open[take.session] = _Session(peer, name=take.session)
        if session:
            self._acknowledge(session, take.consumed)
            if take.closing and take.session in self._open:
                self._end_session(session)
        if session is None or take.session not in self._open:
            base = session.base if session else 0
            status = Status(
                self.next_serial(), self.stream, take.session, base, over=True, done=self.complete
            )
            self._replies.append((peer, status))
        elif take.serial > session.serial:
            self._continue(session, peer, take)

    def _continue(self, session: _Session, peer: Peer, take: Take) -> None:
        if not peer.route:
            # One address has one receiver at a time, so the one that was there before is gone.
            for other in [other for other in self._open.values() if other is not session]:
                self._end_session(other)
        if take.resend or session.peer != peer:
            self.counts.resends += session.sent > take.received
            session.sent = min(max(take.received, session.base), session.sent)
        session.peer, session.lost_at, session.serial = peer, None, take.serial
        session.credit = min(take.credit, self.capacity)

    def _acknowledge(self, session: _Session, consumed: int) -> None:
        """Settles what was consumed, also in a session that is over."""
        if consumed > session.end:
            self.counts.garbage += 1  # it cannot have consumed what was never sent to it
            return
        while session.base < consumed:
            item = session.items.popleft()
            session.base += 1
            if item.owner is None:  # its session is over, but no other has it yet
                self._waiting.remove(item)
                item.owner = session
            if item.owner is not session:
                self.counts.duplicates += 1
                continue
            item.record = b""  # a session that is over may still refer to the item
            self._held -= 1
            self.counts.datapoints += 1
        session.sent = max(session.sent, session.base)

    def _end_session(self, session: _Session) -> None:
        """What is left of the session goes back to the front of the queue."""
        for item in session.items:
            item.owner = None
        left = sorted([*session.items, *self._waiting], key=lambda item: item.index)
        self._waiting = deque(left)
        del self._open[session.name]
        self._over[session.name] = session
        if len(self._over) > REMEMBERED:
            del self._over[next(iter(self._over))]


def send_dataflow_zmq(
    df: DataFlow | Iterable[Any],
    addr: str,
    hwm: int = 50,
    format: str | None = None,
    bind: bool = False,
    *,
    repeat: int | None = None,
    keys: CurveKeys | None = None,
    options: LinkOptions | None = None,
) -> LinkCounts:
    """Sends the datapoints of `df`, epoch after epoch, to the `RemoteDataZMQ`s at `addr`.

    Runs until it is interrupted. With `repeat=n` it returns after n epochs, when every datapoint is
    acknowledged. Each datapoint reaches exactly one receiver. A single receiver gets all of them,
    in order; with `bind=True` there may be several, and each datapoint goes to one that has room.
    Nothing is lost or repeated when the link breaks or a receiver is restarted;
    `towerpack.dataflow.remote` describes each case. At most `hwm` datapoints are kept in memory for
    each receiver, so a receiver that does not consume does not delay the others. Either end may be
    started first, and it reconnects by itself.

    Args:
        addr: 'tcp://host:port' or 'ipc:///path' of the end that binds. To bind to anything but
            loopback needs `keys`.
        format: None; 'zmq_ops' is accepted and means the same.
        bind: whether this end has the fixed address. Several senders connect to one receiver that
            binds, several receivers to one sender that binds.
        repeat: the number of epochs; None means endless.

    Returns the counts of what happened.

    >>> import functools, threading
    >>> from towerpack.dataflow import DataFromList
    >>> from towerpack.dataflow.remote import RemoteDataZMQ
    >>> flow, address = DataFromList([[1], [2]], shuffle=False), "ipc://example.socket"
    >>> send = functools.partial(send_dataflow_zmq, flow, address, repeat=2)
    >>> sender = threading.Thread(target=send)
    >>> sender.start()  # in another process, or on another machine
    >>> datapoints = iter(RemoteDataZMQ(address))
    >>> [next(datapoints) for _ in range(4)]
    [[1], [2], [1], [2]]
    >>> datapoints.close()
    >>> sender.join()
    """
    if format not in FORMATS:
        raise ValueError(f"expected format None or 'zmq_ops', received {format!r}")
    if repeat is not None and repeat < 1:
        raise ValueError(f"expected repeat as a positive number or None, received {repeat!r}")
    options = options or LinkOptions()
    counts = LinkCounts()
    outbox = Outbox(hwm, options, counts)
    pump = Pump(outbox, Endpoints([addr], bind, hwm, options, keys), counts)
    try:
        for record in _records(as_flow(df), repeat, options):
            with pump.condition:
                pump.wait_until(lambda: outbox.has_room, outbox.describe_wait)
                outbox.add(record)
                pump.wake()
        with pump.condition:
            outbox.end()
            pump.wake()
            pump.wait_until(lambda: outbox.finished, outbox.describe_wait)
    except BaseException as error:
        with pump.condition:
            outbox.leave(f"{type(error).__name__}: {error}")
        raise
    finally:
        pump.close()
    return counts


def _records(flow: DataFlow, repeat: int | None, options: LinkOptions) -> Iterator[bytes]:
    """Yields the encoded datapoints of all epochs."""
    index = epochs = 0
    while repeat is None or epochs < repeat:
        before = index
        with contextlib.closing(iter(flow)) as datapoints:
            try:
                for datapoint in datapoints:
                    yield _encode(datapoint, index, options)
                    index += 1
            except DataFlowTerminated:
                return  # a flow that cannot produce again ends the stream for good
        epochs += 1
        if index == before:
            raise ValueError(
                "the flow gave no datapoint in a whole epoch: there is no data to send"
            )


def _encode(datapoint: Any, index: int, options: LinkOptions) -> bytes:
    try:
        record = codec.encode(datapoint)
    except codec.EncodeError as error:
        error.add_note(f"in datapoint {index} of the flow that is sent")
        raise
    if len(record) > options.max_message:
        raise ValueError(
            f"datapoint {index} takes {len(record)} bytes, more than max_message "
            f"({options.max_message}); pass options=LinkOptions(max_message=...) at both ends"
        )
    return record
