"""The collector rests, and is then as it was."""

import gc
import weakref

import pytest

from towerpack.core.collector import collector_at_rest


@pytest.fixture(autouse=True)
def _collector_as_it_was():
    before = gc.isenabled()
    yield
    gc.unfreeze()
    (gc.enable if before else gc.disable)()


def collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def test_nothing_is_collected_inside_and_what_was_made_is_not_looked_at_afterwards():
    gc.enable()
    gc.collect()
    with collector_at_rest():
        before = collections()
        made = [[] for _ in range(100_000)]
        assert collections() == before
    old = {id(thing) for thing in gc.get_objects(generation=2)}
    assert old.issuperset(map(id, made))
    assert gc.isenabled() and not gc.get_freeze_count()


def test_garbage_made_inside_is_found_later():
    class Node:
        pass

    alive = []
    with collector_at_rest():
        node = Node()
        node.self = node
        alive.append(weakref.ref(node))
        del node
    gc.collect()
    assert alive[0]() is None


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    with collector_at_rest():
        pass
    assert not gc.isenabled()


def test_what_a_user_has_frozen_stays_frozen():
    gc.enable()
    gc.freeze()
    before = gc.get_freeze_count()
    with collector_at_rest():
        pass
    assert gc.get_freeze_count() == pytest.approx(before, rel=0.01)


def test_it_runs_again_after_an_error():
    gc.enable()
    with pytest.raises(KeyError), collector_at_rest():
        raise KeyError("inside")
    assert gc.isenabled()
