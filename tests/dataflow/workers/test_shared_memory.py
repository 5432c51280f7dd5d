"""Slots of shared memory: used again when, and only when, the last view of them is gone."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from towerpack import dataflow as df
from towerpack.dataflow.workers import pool
from towerpack.dataflow.workers.shared_memory import Pins, SharedSlots, SlotWriter


@pytest.fixture
def slots():
    made = SharedSlots.create()
    yield made
    made.close()


def test_slots_are_separate_and_grow(slots):
    first, second = slots.root(1, 100), slots.root(2, 100)
    first[:100] = 1
    assert not second[:100].any()
    larger = slots.root(1, 10_000_000)
    assert len(larger) >= 10_000_000 and larger[:100].all()
    larger[50] = 9
    assert first[50] == 9, "an older mapping shows the same memory"


VIEWS = {
    "slice": lambda array: array[2:],
    "transpose": lambda array: array.T,
    "asarray": np.asarray,
    "reinterpretation": lambda array: array.view(np.uint8),
    "reshape": lambda array: array.reshape(-1),
    "row": lambda array: array[1],
    "memoryview": memoryview,
    "frombuffer": lambda array: np.frombuffer(array, np.uint8),
    "slice of a slice": lambda array: array[1:][1:].T[:1],
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_slot_is_held_by_any_view(slots, view):
    pins = Pins()
    root = slots.root(1, 1000)
    array = np.ndarray((4, 5), np.float32, root, 64)
    pins.hold(1, root, 1000)
    kept = VIEWS[view](array)
    del root, array
    gc.collect()
    assert pins.released() == [] and pins.count == 1 and pins.bytes == 1000
    del kept
    assert pins.released() == [1] and pins.count == 0 and pins.bytes == 0


def test_a_view_may_die_in_another_thread(slots):
    pins = Pins()
    held = [slots.root(1, 1000)]
    pins.hold(1, held[0], 1000)
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert pins.released() == [1]


def test_a_slot_may_be_handed_out_again(slots):
    pins = Pins()
    for _ in range(3):
        root = slots.root(1, 1000)
        pins.hold(1, root, 1000)
        del root
        assert pins.released() == [1]


def test_a_writer_grows_its_slot_under_its_arrays(slots):
    writer = SlotWriter(slots, 1)
    arrays = [writer.allocate((300_000,), np.int64) for _ in range(5)]
    for number, array in enumerate(arrays):
        array[...] = number
    places = [writer.place_of(array) for array in arrays]
    assert None not in places and all(place % 64 == 0 for place in places)
    root = slots.root(1, writer.position)
    for number, place in enumerate(places):
        assert (np.ndarray((300_000,), np.int64, root, place) == number).all()


def test_a_writer_knows_what_is_not_its_own(slots):
    writer = SlotWriter(slots, 1)
    array = writer.allocate((4, 6), np.int32)
    assert writer.place_of(np.zeros(3)) is None
    assert writer.place_of(array[:, ::2]) is None, "not contiguous: it must be copied"
    assert writer.place_of(array[2:]) == writer.place_of(array) + 48
    assert writer.allocate(3, object).dtype == object


def batches(count=30, size=1000):
    rows = df.DataFromArrays(np.arange(count * 4 * size).reshape(count * 4, size))
    return df.MultiProcessRunner(df.BatchData(rows, 4), 4, 2)


def test_slots_come_back_so_memory_stays_bounded():
    flow = batches(100)
    with iter(flow) as iterator:
        for number, (batch,) in enumerate(iterator):
            assert batch[0, 0] == number * 4000
            slots = flow._latest.executor._next_slot
    assert slots < 20, "a hundred batches took as many slots"


def test_who_keeps_everything_gets_everything_right(monkeypatch):
    """More than may be held in slots: copies, and no deadlock."""
    monkeypatch.setattr(pool, "HELD_SLOTS", 6)
    flow = batches(60, size=40_000)  # large enough that each takes a slot
    kept = list(flow)
    assert [int(batch[0, 0]) for (batch,) in kept] == [i * 160_000 for i in range(60)]
    assert flow._latest.executor._next_slot < 30


def test_what_is_kept_does_not_change_while_others_come():
    flow = batches(60)
    iterator = iter(flow)
    kept = {}
    for number, (batch,) in enumerate(iterator):
        if number % 7 == 0:
            kept[number] = batch[1:, 3:].T
        for old, view in kept.items():
            assert view[0, 0] == old * 4000 + 1003


def test_the_consumer_may_write_into_what_it_gets():
    for number, (batch,) in enumerate(batches(20)):
        assert batch[0, 0] == number * 4000
        batch[...] = -1
