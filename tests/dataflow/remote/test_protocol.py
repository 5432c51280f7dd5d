"""F16 on the protocol alone, over a simulated network (see simulation.py), and its messages."""

import itertools

import google_crc32c
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.dataflow.remote.ends import endpoints
from tests.dataflow.remote.simulation import CAPACITY, OPTIONS, World
from towerpack.core import codec
from towerpack.dataflow.remote.protocol import (
    MARK,
    MAX_FRAME,
    MAX_REASON,
    BadMessage,
    Data,
    Peer,
    Request,
    Status,
    pack,
    unpack,
)
from towerpack.dataflow.remote.receive import Inbox
from towerpack.dataflow.remote.send import Outbox

TOTAL = 40
FEW, MANY = 8, 1000  # worlds
BOTH = pytest.mark.parametrize("binding", ["receiver", "sender"])


def run(world, faults, steps=1500):
    """Random steps of all parties and faults, then rest until everything has arrived."""
    actions = {"deliver": 30, "produce": 6, "consume": 6, "time": 3, **faults}
    names, weights = list(actions), list(actions.values())
    reached = dict.fromkeys(world.outboxes, 0)  # receivers at a time, at most
    for name in world.rng.choices(names, weights, k=steps):
        if name == "deliver":
            world.deliver(world.rng.choice(world.wires))
        elif name == "produce":
            world.produce(world.rng.choice(world.outboxes), TOTAL)
        elif name == "consume":
            world.consume(world.rng.randrange(len(world.inboxes)))
        elif name == "time":
            world.pass_time(world.rng.choice([0.01, 0.1, 1.0]))
        elif name == "cut":
            world.cut_and_restore(world.rng.choice(world.wires))
        elif name == "lose":
            world.lose_one(world.rng.choice(world.wires))
        elif name == "kill":
            world.kill_receiver(world.rng.randrange(len(world.inboxes)), restore=False)
        elif name == "kill and restore":
            world.kill_receiver(world.rng.randrange(len(world.inboxes)), restore=True)
        elif name == "close":
            world.close_receiver(world.rng.randrange(len(world.inboxes)))
        for inbox in world.inboxes:
            assert len(inbox.ready) <= CAPACITY * len(world.outboxes)
        for outbox in world.outboxes:
            reached[outbox] = max(reached[outbox], outbox.reachable)
            assert len(outbox.records) <= CAPACITY * (reached[outbox] + 1)
    for _ in range(2 * TOTAL):
        for outbox in world.outboxes:
            for _ in range(CAPACITY):
                world.produce(outbox, TOTAL)
        world.settle(OPTIONS.peer_timeout / TOTAL)
    world.settle(OPTIONS.peer_timeout)


def assert_exactly_once(world, ordered):
    for outbox in world.outboxes:
        delivered = world.delivered[outbox.stream]
        assert sorted(delivered) == list(range(TOTAL))
        assert not ordered or delivered == list(range(TOTAL))
        assert outbox.finished
    for inbox in world.inboxes:
        inbox.now = world.now
        assert inbox.ended


# A connecting end has one other end.
SHAPES = [
    (1, 1, "receiver"),
    (1, 1, "sender"),
    (3, 1, "receiver"),
    (1, 2, "sender"),
    (1, 3, "sender"),
]


@pytest.mark.parametrize(("senders", "receivers", "binding"), SHAPES)
def test_F16_links_cut_and_messages_lost(senders, receivers, binding):
    for seed in range(FEW):
        world = World(seed, senders, receivers, binding)
        run(world, {"cut": 0.6, "lose": 1.0})
        assert_exactly_once(world, ordered=receivers == 1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("senders", "receivers", "binding"), SHAPES)
def test_F16_soak_all_faults_at_once(senders, receivers, binding):
    for seed in range(1000, 1000 + MANY):
        world = World(seed, senders, receivers, binding)
        run(world, {"cut": 0.4, "lose": 0.6, "kill and restore": 0.1, "close": 0.1}, steps=3000)
        for outbox in world.outboxes:
            assert set(world.delivered[outbox.stream]) == set(range(TOTAL))
            assert outbox.finished


@BOTH
def test_F16_receiver_killed_and_restored(binding):
    for seed in range(FEW):
        world = World(seed, 1, 1, binding)
        run(world, {"kill and restore": 0.3, "cut": 0.2, "lose": 0.5})
        # A receiver that connects and dies before it saved a state has no successor, so its
        # datapoints come late.
        assert_exactly_once(world, ordered=binding == "receiver")


def test_F16_one_of_several_receivers_killed_and_restored():
    for seed in range(FEW):
        world = World(seed, 1, 2, "sender")
        run(world, {"kill and restore": 0.2})
        assert_exactly_once(world, ordered=False)


@BOTH
def test_F16_receiver_killed_without_state_loses_nothing(binding):
    for seed in range(FEW):
        world = World(seed, 1, 1, binding)
        run(world, {"kill": 0.3, "cut": 0.2, "lose": 0.5})
        (delivered,) = world.delivered.values()
        assert set(delivered) == set(range(TOTAL))
        assert world.outboxes[0].finished


@BOTH
def test_receiver_closed_and_opened_again(binding):
    for seed in range(FEW):
        world = World(seed, 1, 1, binding)
        run(world, {"close": 0.3})
        assert_exactly_once(world, ordered=True)


def test_work_is_split_among_receivers():
    world = World(0, 1, 3, "sender")
    run(world, {}, steps=4000)
    assert_exactly_once(world, ordered=False)
    assert all(inbox.counts.datapoints > 5 for inbox in world.inboxes)


def test_new_receiver_at_the_address_gets_the_rest_at_once():
    world = World(0, 1, 1, "receiver")
    for _ in range(CAPACITY):
        world.produce(world.outboxes[0], TOTAL)
    for _ in range(200):
        world.deliver(world.wires[0])
    assert len(world.inboxes[0].ready) == CAPACITY
    world.kill_receiver(0, restore=False)
    world.settle(OPTIONS.peer_timeout / 10)
    (delivered,) = world.delivered.values()
    assert delivered == list(range(CAPACITY))


def test_F16_receiver_that_was_given_up_drops_what_it_had():
    world = World(0, 1, 2, "sender")
    (outbox,) = world.outboxes
    for produced in (0, CAPACITY):
        for _ in range(produced):
            world.produce(outbox, TOTAL)
        for _ in range(200):
            for wire in world.wires:
                world.deliver(wire)
    assert all(inbox.ready for inbox in world.inboxes)
    first = next(wire for wire in world.wires if wire.client is world.inboxes[0])
    first.cut()
    world.pass_time(1.0)
    world.pass_time(2 * OPTIONS.peer_timeout)
    for _ in range(100):
        world.consume(1)  # what it had, and what the other had
        for wire in world.wires:
            world.deliver(wire)
    world.reconnect(first)
    for _ in range(300):
        world.deliver(first)
    world.consume(0)
    world.settle(5.0)
    (delivered,) = world.delivered.values()
    assert sorted(delivered) == list(range(CAPACITY))


def test_F16_receiver_that_was_given_up_may_still_acknowledge():
    outbox = filled_outbox(6)
    first, second = Peer(0, b"first"), Peer(0, b"second")
    assert data_after(outbox, first, Request(outbox.stream, "a", credit=3)) == [0, 1, 2]
    assert data_after(outbox, second, Request(outbox.stream, "b", credit=3)) == [3, 4, 5]
    outbox.now = 2 * OPTIONS.peer_timeout
    assert data_after(outbox, second, Request(outbox.stream, "b", 0, 3, credit=3)) == []
    # What the first had waits for room at the second; of that it has consumed two meanwhile.
    again = Request(outbox.stream, "a", consumed=2, received=3, credit=3)
    outbox.receive(first, again, None)
    status = next(message for peer, message, _ in outbox.outgoing() if peer == first)
    assert (status.session, status.over) == ("a", True)
    assert data_after(outbox, first, Request(outbox.stream, "a2", credit=3)) == [2]
    assert outbox.counts.duplicates == 0
    assert outbox.counts.datapoints == 2


def test_overtaken_messages_do_no_harm():
    outbox = Outbox(endpoints(CAPACITY, OPTIONS))
    old, new = Peer(0, b"old"), Peer(0, b"new")
    outbox.receive(old, Request(outbox.stream, "r", credit=2), None)
    outbox.receive(new, Request(outbox.stream, "r", credit=2), None)
    outbox.receive(old, Request(outbox.stream, "r", credit=2), None)
    assert outbox.sessions["r"].peer == old
    outbox.receive(new, Request(outbox.stream, "r", credit=2), None)
    assert outbox.sessions["r"].peer == new
    outbox.receive(new, Request(outbox.stream, "r", closing=True), None)
    outbox.receive(old, Request(outbox.stream, "r", credit=2), None)
    assert not outbox.sessions

    inbox = Inbox(endpoints(CAPACITY, OPTIONS))
    inbox.receive(old, Status("s"), None)
    inbox.receive(new, Status("s"), None)
    inbox.receive(old, Status("s"), None)
    inbox.receive(new, Status("s"), None)
    assert inbox.sessions["s"].peer == new


def filled_outbox(count):
    outbox, record = Outbox(endpoints(count, OPTIONS)), codec.encode([1])
    for _ in range(count):
        outbox.add(record)
    return outbox


def data_after(outbox, peer, take):
    """The indices of what is sent after this message."""
    outbox.receive(peer, take, None)
    return sent_by(outbox)


def sent_by(outbox):
    return [message.index for _, message, _ in outbox.outgoing() if isinstance(message, Data)]


def test_no_more_is_sent_than_there_is_credit():
    outbox, peer = filled_outbox(20), Peer(0, b"x")
    stream = outbox.stream
    assert data_after(outbox, peer, Request(stream, "r", credit=3)) == [0, 1, 2]
    assert data_after(outbox, peer, Request(stream, "r", 0, 3, credit=3)) == []
    assert data_after(outbox, peer, Request(stream, "r", 2, 3, credit=3)) == [3, 4]
    assert data_after(outbox, peer, Request(stream, "r", 5, 5, credit=1)) == [5]
    assert data_after(outbox, peer, Request(stream, "r", 5, 6, credit=0)) == []


def test_F16_a_receiver_that_does_not_consume_holds_up_no_other():
    outbox, record = Outbox(endpoints(CAPACITY, OPTIONS)), codec.encode([1])
    idle, busy = Peer(0, b"idle"), Peer(0, b"busy")

    def fill():
        while outbox.has_room:
            outbox.add(record)

    fill()
    taken = Request(outbox.stream, "idle", credit=10 * CAPACITY)
    assert data_after(outbox, idle, taken) == [*range(CAPACITY)]
    assert data_after(outbox, busy, Request(outbox.stream, "busy", credit=CAPACITY)) == []
    received: list[int] = []
    for _ in range(18):
        fill()
        assert outbox.added == len(received) + 2 * CAPACITY  # not more for either
        done = len(received)
        received += sent_by(outbox)
        assert len(received) == done + CAPACITY
        taken = Request(outbox.stream, "busy", len(received), len(received), CAPACITY)
        outbox.receive(busy, taken, None)
    assert received == [*range(CAPACITY, 19 * CAPACITY)]
    outbox.receive(idle, Request(outbox.stream, "idle", closing=True), None)
    assert not outbox.has_room  # what the idle one had counts as long as it waits for another


def test_a_status_of_another_session_only_introduces_the_sender():
    inbox, peer = Inbox(endpoints(CAPACITY, OPTIONS)), Peer(0, b"x")
    inbox.receive(peer, Status("s", "predecessor at this address", 5, 7), None)
    assert inbox.counts.resends == 0
    (take,) = [message for _, message, _ in inbox.outgoing()]
    assert (take.stream, take.consumed, take.received, take.resend) == ("s", 0, 0, False)
    assert take.session not in ("", "predecessor at this address")


def test_receiver_that_was_given_up_ends_with_the_complete_stream():
    inbox, peer = Inbox(endpoints(CAPACITY, OPTIONS)), Peer(0, b"x")
    inbox.receive(peer, Status("s"), None)
    session, _ = inbox.state()["s"]
    inbox.receive(peer, Data("s", session, 0, 0), codec.encode([1]))
    assert inbox.ready
    # Another receiver has consumed everything in the meantime.
    inbox.receive(peer, Status("s", session, 0, 1, over=True, done=True), None)
    assert inbox.ended
    inbox.receive(peer, Status("s", done=True), None)
    assert list(inbox.outgoing()) == []


def test_numbers_of_streams_differ():
    worlds = [World(0, 2, 1, "receiver") for _ in range(3)]
    names = itertools.chain.from_iterable(world.delivered for world in worlds)
    assert len(set(names)) == 6


number = st.integers(0, 2**62)
name = st.text(max_size=64)
messages = st.one_of(
    st.builds(
        Status,
        name,
        name,
        number,
        number,
        st.booleans(),
        st.booleans(),
        st.text(max_size=MAX_REASON),
    ),
    st.builds(Data, name, name, number, number),
    st.builds(Request, name, name, number, number, number, st.booleans(), st.booleans()),
)


@given(messages)
def test_there_and_back(message):
    frame = pack(message)
    assert len(frame) <= MAX_FRAME
    assert unpack(frame) == message


@given(messages, st.data())
def test_F17_any_flipped_bit_is_found(message, data):
    frame = bytearray(pack(message))
    bit = data.draw(st.integers(0, 8 * len(frame) - 1))
    frame[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadMessage):
        unpack(bytes(frame))


@given(st.binary(max_size=100))
@example(b"")
@example(MARK)
@example(b"\x93\xa7request" + b"\x91" * 5000)
@example(msgspec.msgpack.encode(["status", "s", "", -1]))
@example(msgspec.msgpack.encode(["status", "s" * 65]))
@example(msgspec.msgpack.encode(["status", "s", "", 1.5]))
@example(msgspec.msgpack.encode(["data", "s", 1]))
@example(msgspec.msgpack.encode(["status", "s", "", 0, 0, False, False, "x" * (MAX_REASON + 1)]))
@example(msgspec.msgpack.encode(["surprise"]))
@example(b"\x92\xa6status\xa2\xff\xfe")  # text that is not UTF-8
@example(b"\x92\xa6status\xa3\xed\xa0\x80")  # half of a surrogate pair
def test_F17_sealed_garbage_is_refused(body):
    for frame in (body, MARK + google_crc32c.value(body).to_bytes(4, "little") + body):
        with pytest.raises(BadMessage):
            unpack(frame)


def test_another_version_is_named():
    with pytest.raises(BadMessage, match="version 3 .* received version 2: install the same"):
        unpack(b"TPR2" + pack(Request())[4:])
