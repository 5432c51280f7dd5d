"""F16 on the protocol alone, over a simulated network (see simulation.py)."""

import itertools

import pytest

from tests.dataflow.remote.simulation import CAPACITY, OPTIONS, World

TOTAL = 40
FEW, MANY = 8, 1000  # worlds
BOTH = pytest.mark.parametrize("binding", ["receiver", "sender"])


def run(world, faults, steps=1500):
    """Random steps of all parties and faults, then rest until everything has arrived."""
    actions = {"deliver": 30, "produce": 6, "consume": 6, "time": 3, **faults}
    names, weights = list(actions), list(actions.values())
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
            assert len(inbox._ready) <= CAPACITY * len(world.outboxes)
        for outbox in world.outboxes:
            assert outbox._held <= CAPACITY
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
        assert inbox.ended(world.now)


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


def test_numbers_of_streams_differ():
    worlds = [World(0, 2, 1, "receiver") for _ in range(3)]
    names = itertools.chain.from_iterable(world.delivered for world in worlds)
    assert len(set(names)) == 6
