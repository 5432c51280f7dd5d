"""Receiving a flow from senders in other processes or on other machines."""

from __future__ import annotations

import secrets
import time
import weakref
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from towerpack.core import codec, logger
from towerpack.dataflow.base import DataFlow, DataFlowTerminated, FlowIterator, Pass, State
from towerpack.dataflow.remote.curve_keys import CurveKeys
from towerpack.dataflow.remote.link import Endpoints, Pump
from towerpack.dataflow.remote.protocol import (
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

# The share of the credit that is acknowledged in one message while the consumer is busy.
ACKNOWLEDGE_SHARE = 0.25
MAX_STREAMS = 1024  # of senders, present and past: bounds the memory that invented names can take
MAX_SAVED = 256  # streams in a saved state: the latest ones; older senders are long gone


@dataclass(eq=False)
class _Stream(Channel):
    """One sender's stream, and this receiver's session with it."""

    name: str = ""
    session: str = ""
    closing: bool = False  # the session is to end, and the sender has not confirmed it yet
    received: int = 0
    consumed: int = 0
    told: int = 0  # the value of `consumed` in the last message to the sender
    resend: bool = False
    asked_at: float | None = None  # when a resend was last requested; None since there was progress

    def begin_session(self) -> None:
        self.session = secrets.token_hex(8)
        self.received = self.consumed = self.told = 0
        self.closing, self.resend, self.asked_at, self.tell = False, False, None, True


@dataclass(frozen=True, slots=True)
class Entry:
    """A datapoint that waits for the consumer, or the reason why it could not be decoded."""

    stream: _Stream
    session: str
    seq: int
    index: int
    link: int
    datapoint: Any
    error: codec.DecodeError | None = None


class Inbox(End[_Stream]):
    """The receiver's half of the protocol: holds datapoints until the consumer comes for them.

    It accepts each session's datapoints in order only: it asks again for what is missing, and drops
    what it has seen. A datapoint is consumed, and acknowledged, when the consumer comes back for
    the next one, so a receiver that dies while it works on a datapoint has not lost it.
    """

    def __init__(self, capacity: int, options: LinkOptions, counts: LinkCounts, senders: int = 1):
        super().__init__(capacity, options, counts)
        self.senders = senders
        self._streams: dict[str, _Stream] = {}
        self._ready: deque[Entry] = deque()
        self._handed: Entry | None = None
        self._restored: dict[str, tuple[str, int]] = {}  # of streams that are not met yet
        self._finished: deque[str] = deque(maxlen=MAX_STREAMS)
        self._finished_count = 0
        self._closing = False
        self._credit = capacity  # of each sender

    def channels(self) -> Collection[_Stream]:
        return self._streams.values()

    def summary(self, channel: _Stream | None) -> Message:
        if channel is None:
            return Take(self.next_serial())
        take = Take(
            self.next_serial(),
            channel.name,
            channel.session,
            channel.consumed,
            channel.received,
            self._credit,
            channel.resend,
            channel.closing,
        )
        channel.resend, channel.told = False, channel.consumed
        return take

    # The consumer's side.

    def pop(self) -> Entry | None:
        """Returns the next datapoint, if there is one, and acknowledges the one before."""
        if self._handed:
            self._consume(self._handed)
        self._handed = self._ready.popleft() if self._ready else None
        return self._handed

    @property
    def has_datapoint(self) -> bool:
        return bool(self._ready)

    @property
    def has_message(self) -> bool:
        """Whether a message to a sender is due now, not only with the next heartbeat."""
        return any(stream.tell and stream.peer for stream in self._streams.values())

    def ended(self, now: float) -> bool:
        """Whether all senders have ended for good, and the consumer has everything they sent."""
        if self._ready or self._finished_count < self.senders:
            return False
        return not any(
            stream.lost_at is None or now - stream.lost_at < self.options.peer_timeout
            for stream in self._streams.values()
        )

    def describe_wait(self) -> str:
        """What the consumer waits for, for the log."""
        if not self.reachable:
            return "a sender; none is connected"
        return f"{self.reachable} connected senders, which send nothing"

    def state(self) -> dict[str, list[Any]]:
        """For each stream, the session and how much of it was consumed."""
        sessions = dict(self._restored)
        for name, stream in self._streams.items():
            sessions[name] = stream.session, stream.consumed
        handed = self._handed
        if handed and handed.session == handed.stream.session:
            sessions[handed.stream.name] = handed.session, handed.seq + 1
        return {name: list(session) for name, session in list(sessions.items())[-MAX_SAVED:]}

    def restore(self, state: dict[str, list[Any]]) -> None:
        """Begins as the successor of the receiver that saved `state`."""
        # States of earlier versions have a third number. Their senders do not speak this protocol.
        self._restored = {name: (entry[0], entry[-1]) for name, entry in state.items()}

    def close(self) -> None:
        """Ends every session: what the consumer did not get belongs to the senders again."""
        if self._closing:
            return
        self._closing = True
        if self._handed:
            self._consume(self._handed)
            self._handed = None
        self._ready.clear()
        self._streams = {name: s for name, s in self._streams.items() if s.peer}
        for stream in self._streams.values():
            stream.closing = stream.tell = True

    @property
    def closed(self) -> bool:
        return not self._streams

    # The link's side.

    def outgoing(self) -> Iterator[tuple[Peer, Message, bytes | None]]:
        self._credit = max(1, self.capacity // max(1, self.reachable))
        return super().outgoing()

    def receive(self, peer: Peer, message: Message, payload: Any, now: float) -> None:
        if isinstance(message, Data):
            self._receive_data(peer, message, payload, now)
        elif isinstance(message, Status):
            self._receive_status(peer, message, now)
        else:
            self.counts.garbage += 1

    def _receive_status(self, peer: Peer, status: Status, now: float) -> None:
        stream = self._streams.get(status.stream) or self._meet(peer, status)
        if stream is None or status.serial <= stream.serial:
            return
        stream.serial = status.serial
        self._settle_peer(stream, peer, now)
        if status.reason:
            logger.warning("a sender stopped before the end of its stream: %s", status.reason)
            stream.lose(now)
        elif status.session != stream.session:
            stream.tell = True  # the sender does not know this session yet
        elif status.over:
            self._session_over(stream, status.acknowledged)
        elif status.sent > stream.received:
            # A connection keeps the order of its messages: what was sent before this is lost.
            self._ask_again(stream, now)
        if status.done:
            self._finish(stream)

    def _meet(self, peer: Peer, status: Status) -> _Stream | None:
        if status.stream in self._finished and status.session and not status.over:
            bye = Take(self.next_serial(), status.stream, status.session, closing=True)
            self._replies.append((peer, bye))
        if status.stream in self._finished or self._closing:
            return None
        if len(self._streams) >= MAX_STREAMS:
            lost = {s.lost_at: s for s in self._streams.values() if s.received == s.consumed}
            lost.pop(None, None)
            if not lost:
                self.counts.strayed += 1
                return None
            del self._streams[lost[min(at for at in lost if at is not None)].name]
        stream = self._streams[status.stream] = _Stream(peer, name=status.stream)
        stream.begin_session()
        if status.stream in self._restored:
            # Ends the session of the predecessor first, and acknowledges what that had consumed.
            stream.session, stream.consumed = self._restored.pop(status.stream)
            stream.received, stream.closing = stream.consumed, True
        for other in self._streams.values():
            other.tell = True  # its share is smaller now
        return stream

    def _settle_peer(self, stream: _Stream, peer: Peer, now: float) -> None:
        if stream.peer == peer:
            return
        stream.peer, stream.lost_at = peer, None
        stream.tell = stream.resend = True  # what was on its way on the old connection is lost
        if not peer.route:
            # One address has one sender at a time, so the one that was there before is gone.
            for other in self._streams.values():
                if other is not stream and other.peer == peer:
                    other.lose(now)

    def _session_over(self, stream: _Stream, acknowledged: int) -> None:
        if self._closing:
            del self._streams[stream.name]
            return
        if not stream.closing:
            self._ready = deque(entry for entry in self._ready if entry.stream is not stream)
            logger.warning(
                "a sender gave this receiver up; the datapoints that were not acknowledged are "
                "sent again"
            )
        elif acknowledged > stream.consumed:
            missed = acknowledged - stream.consumed
            self.counts.missed += missed
            logger.warning(
                "the restored state is older than the last acknowledgement: %d datapoints are not "
                "repeated",
                missed,
            )
        stream.begin_session()

    def _finish(self, stream: _Stream) -> None:
        self._finished.append(stream.name)
        self._finished_count += 1
        self._streams.pop(stream.name, None)
        if stream.peer:
            stream.closing = True
            self._replies.append((stream.peer, self.summary(stream)))

    def _receive_data(self, peer: Peer, data: Data, payload: Any, now: float) -> None:
        stream = self._streams.get(data.stream)
        if self._closing:
            return
        if stream is None or stream.session != data.session or stream.closing:
            self.counts.strayed += 1
        elif data.seq < stream.received:
            self.counts.duplicates += 1
        elif data.seq > stream.received:
            self._ask_again(stream, now)
        elif stream.received - stream.consumed >= self.capacity:
            self.counts.overrun += 1
        else:
            self._accept(stream, peer, data, payload, now)

    def _accept(self, stream: _Stream, peer: Peer, data: Data, payload: Any, now: float) -> None:
        error = datapoint = None
        try:
            if codec.checksum_of(payload) != data.checksum:
                raise codec.DamagedRecord("not the record that was announced")
            datapoint = codec.decode(payload)
        except codec.DamagedRecord:
            self.counts.damaged += 1
            self._ask_again(stream, now)
            return
        except codec.DecodeError as refused:
            # It arrived as it was sent, so it is useless to ask again: the consumer gets the error.
            error = refused
        self._ready.append(
            Entry(stream, data.session, data.seq, data.index, peer.link, datapoint, error)
        )
        stream.received += 1
        stream.asked_at = None

    def _ask_again(self, stream: _Stream, now: float) -> None:
        # Once: until the answer comes, everything on its way shows the same gap.
        if stream.asked_at is None or now - stream.asked_at >= self.options.heartbeat:
            stream.asked_at = now
            stream.tell = stream.resend = True
            self.counts.resends += 1

    def _consume(self, entry: Entry) -> None:
        self.counts.datapoints += 1
        stream = entry.stream
        if stream.session == entry.session:
            stream.consumed = entry.seq + 1
            untold = stream.consumed - stream.told
            if not self._ready or untold >= self._credit * ACKNOWLEDGE_SHARE:
                stream.tell = True


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
        self.counts = LinkCounts()

    def iterator(self, pass_: Pass) -> FlowIterator:
        return RemoteIterator(self)


class RemoteIterator(FlowIterator):
    """One receiver: its sockets and its thread live from the first `next()` to `close()`."""

    def __init__(self, flow: RemoteDataZMQ):
        self._flow = flow
        ends = flow.endpoints
        self._inbox = Inbox(ends.capacity, ends.options, flow.counts, flow.senders)
        self._pump: Pump | None = None
        self._closed = self._terminated = False
        self._last_state: State | None = None

    def __next__(self) -> Any:
        pump = self._opened()
        with pump.condition:
            entry = self._inbox.pop()
            if self._inbox.has_message:
                pump.wake()
            if entry is None:
                pump.wait_until(self._has_news, self._inbox.describe_wait)
                entry = self._inbox.pop()
        if entry is None:
            self._terminated = not self._closed
            self.close()
            raise self._end()
        if entry.link == 0:
            self._flow.cnt1 += 1
        else:
            self._flow.cnt2 += 1
        if entry.error:
            entry.error.add_note(f"in datapoint {entry.index} of a remote flow, which is left out")
            raise entry.error
        return entry.datapoint

    def _has_news(self) -> bool:
        return self._inbox.has_datapoint or self._inbox.ended(time.monotonic())

    def _opened(self) -> Pump:
        if self._closed:
            raise self._end()
        if self._pump is None:
            self._pump = Pump(self._inbox, self._flow.endpoints, self._flow.counts)
            # Closes the pump of an iterator that is dropped without being closed.
            weakref.finalize(self, self._pump.close)
        return self._pump

    def _end(self) -> BaseException:
        if self._terminated:
            return DataFlowTerminated("every sender has ended for good")
        return StopIteration()

    def state(self) -> State:
        """Which part of each stream was consumed; small, and JSON."""
        if self._last_state is not None:
            return self._last_state
        if self._pump is None:
            return {"streams": self._inbox.state()}
        with self._pump.condition:
            return {"streams": self._inbox.state()}

    def restore(self, state: State) -> None:
        """Continues as the successor of the receiver that saved the state."""
        if not isinstance(state, dict) or set(state) != {"streams"}:
            raise ValueError(f"expected a state with 'streams', received {state!r}")
        if self._pump is None and not self._closed:
            self._inbox.restore(state["streams"])
        elif state != self.state():
            raise ValueError(
                "a remote flow cannot be wound back; restore the state into a new iterator, "
                "before its first next()"
            )

    def close(self) -> None:
        if not self._closed:
            self._last_state = self.state()
            self._closed = True
            if self._pump:
                self._pump.close()
