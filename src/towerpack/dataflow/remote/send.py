"""Sending a flow to receivers in other processes or on other machines."""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from towerpack.core import codec
from towerpack.dataflow.base import DataFlow, DataFlowTerminated
from towerpack.dataflow.remote.curve_keys import CurveKeys
from towerpack.dataflow.remote.link import LinkThread
from towerpack.dataflow.remote.protocol import (
    MAX_REASON,
    Data,
    End,
    Endpoints,
    LinkCounts,
    LinkOptions,
    Message,
    Peer,
    Request,
    Session,
    Status,
)
from towerpack.dataflow.source.iterable import as_flow

FORMATS = (None, "zmq_ops")  # one format; the second name is what old scripts pass
MAX_SESSIONS = 4096  # open at a time: bounds the memory that invented names can take
REMEMBERED = 64  # sessions that are over: a last acknowledgement may still arrive


@dataclass(eq=False)
class Transmission(Session):
    """The datapoints given to one receiver: sent in order, kept until they are acknowledged."""

    acknowledged: int = 0
    indices: deque[int] = field(default_factory=deque)  # of the other datapoints, in the stream
    sent: int = 0
    credit: int = 0

    @property
    def end(self) -> int:
        return self.acknowledged + len(self.indices)


class Outbox(End[Transmission]):
    """The sender's half of the protocol: holds each datapoint until a receiver acknowledges it.

    No session holds more than `capacity` datapoints, so a receiver that does not consume takes
    nothing from the others. A datapoint belongs to one session at a time. It passes to another one
    only when its session is over.
    """

    waits_for = "a receiver that has room"

    def __init__(self, endpoints: Endpoints):
        super().__init__(endpoints)
        self.stream = secrets.token_hex(8)
        self.added = 0
        self.records: dict[int, bytes] = {}  # by index, until they are acknowledged
        self._waiting: deque[int] = deque()  # the indices that belong to no open session
        self._over: dict[str, Transmission] = {}
        self._ended = False

    def introduction(self) -> Status:
        return Status(self.stream, done=self.complete)

    # Called by the thread that produces the datapoints.

    @property
    def has_room(self) -> bool:
        # All unreachable receivers together have one share: the reachable ones are not held up, and
        # a receiver that dies again and again does not fill the memory.
        shares = min(len(self.sessions), self.reachable + 1)
        return len(self.records) < self.endpoints.capacity * max(1, shares)

    @property
    def complete(self) -> bool:
        """Whether the stream has ended and all of it is acknowledged."""
        return self._ended and not self.records

    @property
    def finished(self) -> bool:
        """Whether the stream is complete and every receiver knows it, or has timed out."""
        return self.complete and not self.sessions

    def add(self, record: bytes) -> None:
        self.records[self.added] = record
        self._waiting.append(self.added)
        self.added += 1
        self.wake()

    def end(self, reason: str = "") -> None:
        """Ends the stream; with a `reason`, before its end."""
        self._ended = not reason
        for session in self.sessions.values():
            status = Status(self.stream, session.name, done=self.complete, reason=reason)
            self._replies.append((session.peer, status))
        self.wake()

    def close(self) -> None:
        self.sessions.clear()  # no receiver needs to confirm anything

    # Called by the thread of the link.

    def outgoing(self) -> Iterator[tuple[Peer, Message, bytes | None]]:
        yield from super().outgoing()
        for session in list(self.sessions.values()):
            # Without another receiver it is kept: its own may come back, and know what it consumed.
            if self.timed_out(session) and (self.reachable or not session.indices):
                self._end_session(session)
        self._assign()
        for session in self.sessions.values():
            while session.sent < session.end:
                index = session.indices[session.sent - session.acknowledged]
                data = Data(self.stream, session.name, session.sent, index)
                session.sent += 1
                yield session.peer, data, self.records[index]

    def _assign(self) -> None:
        """Gives each waiting datapoint to the receiver that has the fewest, if one has room."""
        while self._waiting:
            free = [
                session
                for session in self.sessions.values()
                if len(session.indices) < session.credit and self.hears(session)
            ]
            if not free:
                return
            session = min(free, key=lambda session: len(session.indices))
            session.indices.append(self._waiting.popleft())

    def receive(self, peer: Peer, message: Message, record: object) -> None:
        if not isinstance(message, Request):
            self.counts.garbage += 1
        elif message.stream != self.stream:
            self._replies.append((peer, self.introduction()))
        else:
            self._answer(peer, message)

    def _answer(self, peer: Peer, request: Request) -> None:
        name = request.session
        session = self.sessions.get(name) or self._over.get(name)
        if session is None:
            session = Transmission(name, peer, self.now)
            if not request.closing and not request.received:  # it is new, not forgotten
                if len(self.sessions) >= MAX_SESSIONS:
                    self.counts.strayed += 1
                    return
                self.sessions[name] = session
        elif request.consumed > session.end:
            self.counts.garbage += 1  # it cannot have consumed what was never sent to it
        else:
            self._acknowledge(session, request.consumed)
        if name in self.sessions:
            if request.closing:
                self._end_session(session)
            else:
                self._continue(session, peer, request)
        over = name not in self.sessions
        status = Status(self.stream, name, session.acknowledged, session.sent, over, self.complete)
        self._replies.append((peer, status))

    def _continue(self, session: Transmission, peer: Peer, request: Request) -> None:
        if not peer.route:
            # One address has one receiver at a time, so the one that was there before is gone.
            for other in [other for other in self.sessions.values() if other is not session]:
                self._end_session(other)
        if request.resend:
            session.sent = min(max(request.received, session.acknowledged), session.sent)
        session.peer, session.heard_at = peer, self.now
        session.credit = min(request.credit, self.endpoints.capacity)

    def _acknowledge(self, session: Transmission, consumed: int) -> None:
        """Releases what was consumed, also by a receiver whose session is over."""
        over = session.name in self._over
        while session.acknowledged < consumed:
            index = session.indices.popleft()
            session.acknowledged += 1
            if over and index not in self._waiting:  # another receiver has been given it
                self.counts.duplicates += 1
            else:
                if over:
                    self._waiting.remove(index)
                del self.records[index]
                self.counts.datapoints += 1
        session.sent = max(session.sent, session.acknowledged)

    def _end_session(self, session: Transmission) -> None:
        """Puts what is left of the session back to the front of the queue."""
        self._waiting = deque(sorted([*session.indices, *self._waiting]))
        self._over[session.name] = self.sessions.pop(session.name)
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
    ends = Endpoints([addr], bind, hwm, options or LinkOptions(), keys)
    outbox = Outbox(ends)
    link = LinkThread(outbox)
    try:
        for record in _records(as_flow(df), repeat, ends.options.max_message):
            with link.condition:
                link.wait_until(lambda: outbox.has_room)
                outbox.add(record)
        with link.condition:
            outbox.end()
            link.wait_until(lambda: outbox.finished)
    except BaseException as error:
        with link.condition:
            outbox.end(f"{type(error).__name__}: {error}"[:MAX_REASON])
        raise
    finally:
        link.close()
    return ends.counts


def _records(flow: DataFlow, repeat: int | None, max_message: int) -> Iterator[bytes]:
    """Yields the encoded datapoints of all epochs."""
    index = 0
    for _ in itertools.islice(itertools.count(), repeat):
        before = index
        with contextlib.closing(iter(flow)) as datapoints:
            try:
                for datapoint in datapoints:
                    yield _encode(datapoint, index, max_message)
                    index += 1
            except DataFlowTerminated:
                return  # a flow that cannot produce again ends the stream for good
        if index == before:
            raise ValueError("the flow has no datapoint in a whole epoch: there is nothing to send")


def _encode(datapoint: Any, index: int, max_message: int) -> bytes:
    try:
        record = codec.encode(datapoint)
    except codec.EncodeError as error:
        error.add_note(f"in datapoint {index} of the flow that is sent")
        raise
    if len(record) > max_message:
        raise ValueError(
            f"datapoint {index} takes {len(record)} bytes, more than max_message "
            f"({max_message}); pass options=LinkOptions(max_message=...) at both ends"
        )
    return record
