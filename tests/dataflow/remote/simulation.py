"""Outboxes and inboxes over a simulated network: every fault, thousands of orders, no waiting.

A connection keeps the order of its messages, as TCP does. When it is cut, what is on its way is
lost, except for what the connecting end had only queued: that goes to the next end it reaches. The
binding end sees a new address when the peer is back. Single messages are lost, as by a flipped bit.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from tests.dataflow.remote.ends import endpoints
from towerpack.core import codec
from towerpack.dataflow.remote.protocol import LinkOptions, Peer, pack, unpack
from towerpack.dataflow.remote.receive import Inbox
from towerpack.dataflow.remote.send import Outbox

CAPACITY = 6
# Far longer than all the faults together: beyond it, a receiver counts as dead.
OPTIONS = LinkOptions(heartbeat=1.0, peer_timeout=200.0)


@dataclass
class Wire:
    """A connection from a connecting engine to a binding one, cut and made anew."""

    client: object
    server: object
    up: bool = False
    route: bytes = b""
    to_client: deque = field(default_factory=deque)
    to_server: deque = field(default_factory=deque)

    def connect(self, number: int) -> None:
        self.up, self.route = True, b"%d" % number
        self.client.next_beat = 0.0

    def cut(self, survivors: int = 0) -> None:
        """Loses what is on its way, except for the last that the connecting end has queued."""
        self.up = False
        self.to_client.clear()
        while len(self.to_server) > survivors:
            self.to_server.popleft()


class World:
    """Some senders and receivers, wired; `binding` says which side has the fixed addresses."""

    def __init__(self, seed: int, senders: int, receivers: int, binding: str):
        self.rng = random.Random(seed)
        self.now = 0.0
        self.connections = 0
        self.binding = binding
        sender = [endpoints(CAPACITY, OPTIONS, bind=binding == "sender") for _ in range(senders)]
        self.outboxes = [Outbox(ends) for ends in sender]
        self.inboxes = [self.new_inbox() for _ in range(receivers)]
        self.delivered: dict[str, list[int]] = {box.stream: [] for box in self.outboxes}
        self.saved: dict[int, dict] = {}
        self.wires: list[Wire] = []
        for outbox in self.outboxes:
            for inbox in self.inboxes:
                self.wires.append(self.wire(outbox, inbox))

    def new_inbox(self) -> Inbox:
        return Inbox(endpoints(CAPACITY, OPTIONS, bind=self.binding == "receiver"))

    def wire(self, outbox: Outbox, inbox: Inbox) -> Wire:
        wire = Wire(outbox, inbox) if self.binding == "receiver" else Wire(inbox, outbox)
        self.reconnect(wire)
        return wire

    def reconnect(self, wire: Wire) -> None:
        self.connections += 1
        wire.connect(self.connections)

    # What an engine sends goes on a wire, or is lost.

    def flush(self, engine) -> None:
        engine.now = self.now
        for peer, message, payload in engine.outgoing():
            for wire in self.wires:
                if wire.client is engine and wire.up and peer == Peer(0):
                    wire.to_server.append((pack(message), payload))
                    break
                if wire.server is engine and wire.up and peer == Peer(0, wire.route):
                    wire.to_client.append((pack(message), payload))
                    break

    def deliver(self, wire: Wire) -> None:
        """One message reaches its end."""
        self.flush(wire.client)
        queue, engine, peer = self.rng.choice(
            [
                (wire.to_client, wire.client, Peer(0)),
                (wire.to_server, wire.server, Peer(0, wire.route)),
            ]
        )
        if queue and wire.up:
            frame, payload = queue.popleft()
            engine.now = self.now
            engine.receive(peer, unpack(frame), payload)
            self.flush(engine)

    # The users at both ends.

    def produce(self, outbox: Outbox, total: int) -> None:
        if outbox.has_room and outbox.added < total:
            outbox.add(codec.encode([outbox.added]))
            if outbox.added == total:
                outbox.end()
            self.flush(outbox)

    def consume(self, number: int) -> None:
        inbox = self.inboxes[number]
        entry = inbox.pop()
        if entry:
            self.delivered[entry.session.name] += entry.datapoint
            self.saved[number] = inbox.state()
        self.flush(inbox)

    # Faults.

    def cut_and_restore(self, wire: Wire) -> None:
        if wire.up:
            wire.cut(survivors=self.rng.randrange(5))
        elif self.rng.random() < 0.3:
            self.reconnect(wire)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for engine in [*self.outboxes, *self.inboxes]:
            self.flush(engine)

    def lose_one(self, wire: Wire) -> None:
        queue = self.rng.choice([wire.to_client, wire.to_server])
        if queue:
            del queue[self.rng.randrange(len(queue))]

    def kill_receiver(self, number: int, restore: bool) -> None:
        """A receiver dies and comes back, with the state it had saved or without."""
        old = self.inboxes[number]
        new = self.inboxes[number] = self.new_inbox()
        if restore and number in self.saved:
            new.restore(self.saved[number])
        for wire in [w for w in self.wires if old in (w.client, w.server)]:
            outbox = wire.client if wire.server is old else wire.server
            if wire.up:
                wire.cut(survivors=self.rng.randrange(5))
            if self.binding == "receiver":
                wire.server = new  # the sender's socket, and what it has yet to learn, stay
            else:
                self.wires.remove(wire)
                self.wires.append(self.wire(outbox, new))

    def close_receiver(self, number: int) -> None:
        """A receiver closes properly, and another takes its place."""
        self.inboxes[number].close()
        self.flush(self.inboxes[number])
        for wire in self.wires:
            while wire.up and self.inboxes[number] in (wire.client, wire.server):
                before = len(wire.to_server) + len(wire.to_client)
                self.deliver(wire)
                if before == 0:
                    break
        self.kill_receiver(number, restore=False)

    def settle(self, seconds: float) -> None:
        """Time without faults."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            for wire in self.wires:
                if not wire.up:
                    self.reconnect(wire)
            for engine in [*self.outboxes, *self.inboxes]:
                self.flush(engine)
            for wire in self.wires:
                while wire.to_client or wire.to_server:
                    self.deliver(wire)
            for number in range(len(self.inboxes)):
                for _ in range(CAPACITY):
                    self.consume(number)
