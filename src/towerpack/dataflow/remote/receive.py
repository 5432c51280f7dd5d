"""Receiving a flow from senders on other machines or in other processes."""

from __future__ import annotations

import time
import weakref
from typing import Any

from towerpack.dataflow.base import DataFlow, DataFlowTerminated, FlowIterator, Pass, State
from towerpack.dataflow.remote.curve_keys import CurveKeys
from towerpack.dataflow.remote.inbox import Inbox
from towerpack.dataflow.remote.link import Endpoints
from towerpack.dataflow.remote.link_options import LinkCounts, LinkOptions
from towerpack.dataflow.remote.pump import Pump


class RemoteDataZMQ(DataFlow):
    """The datapoints that `send_dataflow_zmq` sends to `addr1`, and to `addr2` if there is one.

    Each sender's stream arrives in order, every datapoint exactly once; several senders are mixed
    as they come. Nothing is lost or repeated when the link breaks (`towerpack.dataflow.remote` says
    exactly what holds). About `hwm` datapoints are kept in memory, shared by the senders. There is
    no `len()`, and no epoch: a pass goes on where the senders are. When all senders have ended for
    good (`repeat=` there), `DataFlowTerminated` is raised; otherwise a pass never ends.

    A datapoint is acknowledged when the consumer comes for the next one, or closes the iterator; a
    sender sends everything else to the next receiver. So a receiver that is killed and started
    again gets once more what it had taken and not acknowledged, unless it restores a state that it
    saved together with its results. To restore is to go on, not to go back: what was acknowledged
    after the state was saved does not come again; the log says how much that was.

    One iterator at a time can have a bound address. It is opened by the first `next()`. Arrays may
    be written into.

    Args:
        addr1: 'tcp://host:port' or 'ipc:///path' of the end that binds. To bind to anything but
            loopback needs `keys`.
        bind: whether this end has the fixed address.
        senders: how many senders must have ended before the flow has.

    Attributes:
        cnt1, cnt2: datapoints received from each of the two addresses.
        counts: what else has happened on the links, `LinkCounts`.
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
            if self._inbox.acknowledgement_due(time.monotonic()):
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
            # For an iterator that is dropped without being closed.
            weakref.finalize(self, self._pump.close)
        return self._pump

    def _end(self) -> BaseException:
        if self._terminated:
            return DataFlowTerminated("every sender has ended for good")
        return StopIteration()

    def state(self) -> State:
        """Which part of each stream this receiver has taken over from its sender."""
        if self._last_state is not None:
            return self._last_state
        if self._pump is None:
            return {"streams": self._inbox.state()}
        with self._pump.condition:
            return {"streams": self._inbox.state()}

    def restore(self, state: State) -> None:
        """Goes on as the successor of the receiver whose state it was."""
        if not isinstance(state, dict) or set(state) != {"streams"}:
            raise ValueError(f"expected a state with 'streams', received {state!r}")
        if self._pump is None and not self._closed:
            self._inbox.restore(state["streams"])
        elif state != self.state():
            raise ValueError(
                "a remote flow cannot be wound back; restore the state into a fresh iterator, "
                "before its first next()"
            )

    def close(self) -> None:
        if not self._closed:
            self._last_state = self.state()
            self._closed = True
            if self._pump:
                self._pump.close()
