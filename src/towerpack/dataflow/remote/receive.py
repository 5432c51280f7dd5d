"""Receiving a flow from senders in other processes or on other machines."""

from __future__ import annotations

import contextlib
import math
import secrets
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from towerpack.core import codec, logger
from towerpack.dataflow.base import DataFlow, DataFlowTerminated
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.iterators import FlowIterator, State
from towerpack.dataflow.remote.curve_keys import CurveKeys
from towerpack.dataflow.remote.link import LinkThread
from towerpack.dataflow.remote.protocol import (
    Data,
    End,
    Endpoints,
    LinkOptions,
    Message,
    Peer,
    Request,
    Session,
    Status,
)

MAX_STREAMS = 1024  # of senders, present and past: bounds the memory that invented names can take
MAX_SAVED = 256  # streams in a saved state: the latest ones; older senders are long gone


@dataclass(eq=False)
class Reception(Session):
    """This receiver's session with one sender's stream; `name` is the stream's."""

    session: str = field(default_factory=lambda: secrets.token_hex(8))
    received: int = 0
    delivered: int = 0  # passed to the consumer, which may still work on the last one
    consumed: int = 0
    requested: int = 0  # the value of `consumed` in the last request
    request: bool = True  # whether a request is due
    resend: bool = False
    asked_at: float = -math.inf  # when a resend was last requested; reset by progress
    closing: bool = False  # the session ends, and the sender has not confirmed it yet


class Entry(NamedTuple):
    """A datapoint that waits for the consumer, or the error if it could not be decoded."""

    session: Reception
    link: int
    datapoint: Any


class Inbox(End[Reception]):
    """The receiver's half of the protocol: holds datapoints until the consumer requests them.

    It accepts each session's datapoints in order only: it asks again for what is missing, and drops
    repetitions. A datapoint is consumed, and acknowledged, when the consumer requests the next one,
    so a receiver that dies while it works on a datapoint has not lost it.
    """

    waits_for = "a sender that has datapoints"

    def __init__(self, endpoints: Endpoints, senders: int = 1):
        super().__init__(endpoints)
        self._senders = senders
        self.ready: deque[Entry] = deque()
        self._current: Entry | None = None  # the datapoint that the consumer works on
        self._restored: dict[str, list[Any]] = {}  # of streams that did not appear yet
        self._finished: deque[str] = deque(maxlen=MAX_STREAMS)
        self._closing = False

    def introduction(self) -> Request:
        return Request()

    @property
    def credit(self) -> int:
        """The credit of each sender."""
        return max(1, self.endpoints.capacity // max(1, self.reachable))

    # Called by the consumer's thread.

    def pop(self) -> Entry | None:
        """Returns the next datapoint, if there is one, and acknowledges the one before."""
        self._consume_current()
        if self.ready:
            self._current = self.ready.popleft()
            self._current.session.delivered += 1
        return self._current

    def _consume_current(self) -> None:
        if self._current:
            self.counts.datapoints += 1
            session, self._current = self._current.session, None
            session.consumed += 1
            # While the consumer is busy, one request acknowledges a quarter of the credit.
            if not self.ready or session.consumed - session.requested >= self.credit / 4:
                session.request = True
                self.wake()

    @property
    def ended(self) -> bool:
        """Whether all senders have ended for good, and the consumer has everything they sent."""
        return (
            not self.ready
            and len(self._finished) >= self._senders
            and all(s.name in self._finished or self.timed_out(s) for s in self.sessions.values())
        )

    def state(self) -> dict[str, list[Any]]:
        """For each stream, the session and how much of it the consumer was given."""
        sessions = {name: [s.session, s.delivered] for name, s in self.sessions.items()}
        return dict([*self._restored.items(), *sessions.items()][-MAX_SAVED:])

    def restore(self, state: dict[str, list[Any]]) -> None:
        """Begins as the successor of the receiver that saved `state`."""
        # States of version 1 have a third number. Their senders do not speak this protocol.
        self._restored = {name: [entry[0], entry[-1]] for name, entry in state.items()}

    def close(self) -> None:
        """Ends every session: what the consumer did not get belongs to the senders again."""
        self._closing = True
        self._consume_current()
        self.ready.clear()
        self.sessions = {name: s for name, s in self.sessions.items() if self.hears(s)}
        for session in self.sessions.values():
            session.closing = session.request = True

    # Called by the thread of the link.

    def outgoing(self) -> Iterator[tuple[Peer, Message, bytes | None]]:
        beat, credit = self.now >= self.next_beat, self.credit
        yield from super().outgoing()
        for s in self.sessions.values():
            if beat or s.request:
                request = Request(
                    s.name, s.session, s.consumed, s.received, credit, s.resend, s.closing
                )
                s.request = s.resend = False
                s.requested = s.consumed
                yield s.peer, request, None

    def receive(self, peer: Peer, message: Message, record: Any) -> None:
        if isinstance(message, Data):
            self._receive_data(peer, message, record)
        elif isinstance(message, Status):
            session = self.sessions.get(message.stream) or self._meet(peer, message.stream)
            if session:
                session.peer, session.heard_at = peer, self.now
                self._receive_status(session, message)
        else:
            self.counts.garbage += 1

    def _meet(self, peer: Peer, stream: str) -> Reception | None:
        """Begins a session with a new stream, unless that has finished or there are too many."""
        if self._closing or stream in self._finished:
            return None
        if len(self.sessions) >= MAX_STREAMS:  # then the longest silent sender is forgotten
            oldest = min(self.sessions.values(), key=lambda session: session.heard_at)
            if self.hears(oldest) or oldest.received > oldest.consumed:
                self.counts.strayed += 1
                return None
            del self.sessions[oldest.name]
        session = self.sessions[stream] = Reception(stream, peer, self.now)
        if stream in self._restored:
            # Ends the session of the predecessor first, and acknowledges what that had consumed.
            session.session, session.consumed = self._restored.pop(stream)
            session.received = session.delivered = session.consumed
            session.closing = True
        return session

    def _receive_status(self, session: Reception, status: Status) -> None:
        if status.done and session.name not in self._finished:
            self._finished.append(session.name)
            session.closing = session.request = True
        if status.reason:
            logger.warning("a sender stopped before the end of its stream: %s", status.reason)
            session.heard_at = -math.inf
        elif status.session != session.session:
            session.request = True  # the sender does not know this session yet
        elif status.over:
            self._session_over(session, status.acknowledged)
        elif status.sent > session.received:
            # A connection keeps the order of its messages: what was sent before this is lost.
            self._ask_again(session)

    def _session_over(self, session: Reception, acknowledged: int) -> None:
        kept = deque(entry for entry in self.ready if entry.session is not session)
        dropped, missed = len(self.ready) - len(kept), acknowledged - session.consumed
        self.ready = kept
        if dropped:
            logger.warning("a sender gave up this receiver, which drops %d datapoints", dropped)
        if missed > 0:
            self.counts.missed += missed
            logger.warning(
                "the restored state is older than the last acknowledgement: %d datapoints are not "
                "repeated",
                missed,
            )
        del self.sessions[session.name]
        if not self._closing and session.name not in self._finished:
            self.sessions[session.name] = Reception(session.name, session.peer, self.now)

    def _receive_data(self, peer: Peer, data: Data, record: Any) -> None:
        session = self.sessions.get(data.stream)
        if session is None or session.session != data.session or session.closing:
            self.counts.strayed += 1
        elif data.seq < session.received:
            self.counts.duplicates += 1
        elif data.seq > session.received:
            self._ask_again(session)
        elif session.received - session.consumed >= self.endpoints.capacity:
            self.counts.overrun += 1
        else:
            try:
                datapoint = codec.decode(record)
            except codec.DamagedRecord:
                self.counts.damaged += 1
                self._ask_again(session)
                return
            except codec.DecodeError as error:
                # It arrived as it was sent, so the consumer gets the error.
                error.add_note(f"in datapoint {data.index} of a remote flow, which is left out")
                datapoint = error
            self.ready.append(Entry(session, peer.link, datapoint))
            session.received += 1
            session.asked_at = -math.inf

    def _ask_again(self, session: Reception) -> None:
        # Once: until the answer comes, everything on its way shows the same hole.
        if self.now - session.asked_at >= self.endpoints.options.heartbeat:
            session.asked_at = self.now
            session.request = session.resend = True
            self.counts.resends += 1


class RemoteDataZMQ(DataFlow):
    """The datapoints that `send_dataflow_zmq` sends to `addr1`, and to `addr2` if there is one.

    Each sender's stream arrives in order, every datapoint exactly once. Several streams are mixed
    as they arrive. Nothing is lost or repeated when the link breaks; `towerpack.dataflow.remote`
    describes each case. About `hwm` datapoints are kept in memory, shared by the senders. There is
    no `len()` and no epoch: a new iterator continues where the last one stopped, and never ends by
    itself. When all senders have ended for good (`repeat=` there), it raises `DataFlowTerminated`.

    A datapoint is acknowledged when the consumer asks for the next one or closes the iterator. The
    sender sends everything else to the next receiver. So a receiver that is killed and started
    again gets the last few datapoints again, unless it restores a state that was saved together
    with its results. Restoring continues the stream; it cannot rewind it. What was acknowledged
    after the state was saved is not sent again, and a warning reports how much that was.

    A bound address serves one iterator at a time. The first `next()` opens it. The arrays are
    writable.

    Args:
        addr1: 'tcp://host:port' or 'ipc:///path' of the end that binds. To bind to anything but
            loopback needs `keys`.
        bind: whether this end has the fixed address.
        senders: the number of senders that must have ended before the flow ends.

    Attributes:
        cnt1, cnt2: datapoints received from each of the two addresses.
        counts: what else happened on the links (`LinkCounts`).
    """

    external = True

    def __init__(
        self,
        addr1: str,
        addr2: str | None = None,
        hwm: int = 50,
        bind: bool = True,
        *,
        senders: int = 1,
        keys: CurveKeys | None = None,
        options: LinkOptions | None = None,
    ):
        addresses = [addr1] if addr2 is None else [addr1, addr2]
        self.endpoints = Endpoints(addresses, bind, hwm, options or LinkOptions(), keys)
        if isinstance(senders, bool) or not isinstance(senders, int) or senders < 1:
            raise ValueError(f"expected senders as a positive integer, received {senders!r}")
        self.senders = senders
        self.cnt1 = self.cnt2 = 0
        self.counts = self.endpoints.counts

    def iterator(self, epoch: Epoch) -> FlowIterator:
        return RemoteIterator(self)


class RemoteIterator(FlowIterator):
    """One receiver: its sockets and its thread live from the first `next()` to `close()`."""

    def __init__(self, flow: RemoteDataZMQ):
        self._flow, self._inbox = flow, Inbox(flow.endpoints, flow.senders)
        self._link: LinkThread | None = None
        self._last_state: State | None = None  # set when it is closed

    def draw(self) -> Any:
        entry = self._next_entry() if self._last_state is None else None
        if entry is None:
            self.close()
            if self._inbox.ended:
                raise DataFlowTerminated("every sender has ended for good")
            raise StopIteration
        if entry.link == 0:
            self._flow.cnt1 += 1
        else:
            self._flow.cnt2 += 1
        if isinstance(entry.datapoint, codec.DecodeError):
            raise entry.datapoint
        return entry.datapoint

    def _next_entry(self) -> Entry | None:
        """Waits for a datapoint; returns None at the end."""
        inbox = self._inbox
        if self._link is None:
            self._link = LinkThread(inbox)
            # Closes the link of an iterator that is dropped without being closed.
            weakref.finalize(self, self._link.close)
        with self._link.condition:
            entry = inbox.pop()
            if entry is None:
                self._link.wait_until(lambda: bool(inbox.ready) or inbox.ended)
                entry = inbox.pop()
            return entry

    def state(self) -> State:
        """Which part of each stream was consumed; small, and JSON."""
        if self._last_state is not None:
            return self._last_state
        with self._link.condition if self._link else contextlib.nullcontext():
            return {"streams": self._inbox.state()}

    def restore(self, state: State) -> None:
        """Continues as the successor of the receiver that saved the state."""
        if not isinstance(state, dict) or set(state) != {"streams"}:
            raise ValueError(f"expected a state with 'streams', received {state!r}")
        if self._link is None and self._last_state is None:
            self._inbox.restore(state["streams"])
        elif state != self.state():
            raise ValueError(
                "a remote flow cannot be rewound; restore the state into a new iterator, "
                "before its first next()"
            )

    def close(self) -> None:
        if self._last_state is None:
            self._last_state = self.state()
            if self._link:
                self._link.close()
