"""A line of batches between two threads, stacked while they wait."""

import threading

import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.input_source import buffer as module
from towerpack.input_source.buffer import ALIGNMENT, Batches, Buffer, aligned_empty


def batch(number, rows=2):
    return [np.full((rows, 3), number, np.float32), np.full(rows, number, np.int64)]


def stacking(rows, group=1, size=100):
    """A buffer whose consumer has asked for stacks once."""
    buffer = Buffer(size)
    for number in range(-group, 0):
        buffer.put(batch(number))
    buffer.take(group, group, rows)
    return buffer


def filled(count, rows=4, **options):
    buffer = stacking(rows, **options)
    for number in range(count):
        buffer.put(batch(number))
    return buffer


def numbers(batches):
    return [int(batches.batch(n)[1][0]) for n in range(batches.count)]


def test_stacked_batches_are_handed_out_without_a_copy():
    buffer = filled(8)
    block = buffer._blocks[1]
    found = buffer.take(3, 1, 4)
    assert found.stacks[0] is block.arrays
    assert [array.shape for array in found.stacks[0]] == [(4, 2, 3), (4, 2)]
    assert all(array.ctypes.data % ALIGNMENT == 0 for array in found.stacks[0])
    assert numbers(found) == [0, 1, 2] and buffer.count == 5
    rest = buffer.take(4, 1, 4)
    assert (rest.first, numbers(rest)) == (3, [3])
    assert numbers(buffer.take(4, 1, 4)) == [4, 5, 6, 7]
    with pytest.raises(RuntimeError, match=r"expected wait\(\) before"):
        buffer.take(1, 1, 4)


def test_a_batch_by_itself_keeps_its_arrays_or_is_copied():
    buffer, ours, theirs = Buffer(10), batch(0), batch(1)
    buffer.put(ours, keep=True)
    buffer.put(theirs)
    found = [buffer.take(1, 1, 1).batch(0) for _ in range(2)]
    assert np.shares_memory(found[0][0], ours[0])
    assert not np.shares_memory(found[1][0], theirs[0])
    assert found[1][0].ctypes.data % ALIGNMENT == 0


def test_what_was_handed_out_is_not_written_to():
    buffer = filled(1)
    first = buffer.take(2, 1, 4)
    for number in range(1, 9):
        buffer.put(batch(number))
    assert numbers(first) == [0]
    assert numbers(buffer.take(3, 1, 4)) == [1, 2, 3]
    assert numbers(buffer.take(4, 1, 4)) == [4, 5, 6, 7]


def test_batches_of_another_form_come_in_their_turn():
    buffer = stacking(4)
    sizes = [2, 2, 1, 2, 2, 2, 2, 2, 3]
    for number, rows in enumerate(sizes):
        buffer.put(batch(number, rows))
    counts, seen = [], []
    while buffer.count:
        found = buffer.take(4, 1, 4)
        counts.append(found.count)
        seen += [found.batch(n)[1].tolist() for n in range(found.count)]
    assert counts == [2, 1, 4, 1, 1]
    assert seen == [[number] * rows for number, rows in enumerate(sizes)]


def test_a_group_across_blocks_comes_apart():
    buffer = stacking(4, group=2)
    for number, rows in enumerate([2, 2, 2, 1, 1, 1]):
        buffer.put(batch(number, rows))
    found = [buffer.take(4, 2, 4) for _ in range(3)]
    assert [numbers(batches) for batches in found] == [[0, 1], [2, 3], [4, 5]]
    assert [batches.stacked for batches in found] == [True, False, True]


def test_the_rows_of_a_stack_are_limited_by_memory_and_whole_groups(monkeypatch):
    monkeypatch.setattr(module, "STACK_BYTES", 5 * sum(array.nbytes for array in batch(0)))
    buffer = filled(8, rows=8, group=2)
    assert [numbers(buffer.take(8, 2, 8)) for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_what_came_before_the_rows_changed_is_joined():
    buffer = Buffer(100)
    for number in range(7):
        buffer.put(batch(number, 2 if number < 6 else 1))
    assert numbers(buffer.take(1, 1, 1)) == [0]
    found = buffer.take(4, 1, 4)
    assert numbers(found) == [1, 2, 3, 4] and found.stacks[0][0].shape == (4, 2, 3)
    found = buffer.take(4, 1, 4)
    assert numbers(found) == [5] and found.stacks[0][0].shape == (4, 2, 3)
    assert numbers(buffer.take(4, 1, 4)) == [6]


def test_put_waits_for_room_until_closed():
    buffer = Buffer(3)
    for number in range(3):
        buffer.put(batch(number))
    thread = threading.Thread(target=lambda: [buffer.put(batch(n)) for n in (3, 4)])
    thread.start()
    buffer.take(1, 1, 1)
    while buffer.count < 3:
        assert thread.is_alive()
    assert numbers(buffer.take(1, 1, 1)) == [1]
    thread.join(10)
    assert not thread.is_alive()
    blocked = threading.Thread(target=lambda: buffer.put(batch(5)))
    blocked.start()
    blocked.join(0.1)
    assert blocked.is_alive()
    buffer.close()
    blocked.join(10)
    assert not blocked.is_alive()
    assert buffer.count == 3  # and the batch that came too late is not among them


def test_order_between_two_threads():
    buffer, rng = Buffer(20), np.random.default_rng(0)
    thread = threading.Thread(target=lambda: [buffer.put(batch(n)) for n in range(500)])
    thread.start()
    seen = []
    while len(seen) < 500:
        buffer.wait(1)
        limit, rows = int(rng.integers(1, 9)), int(rng.choice([1, 8]))
        seen += numbers(buffer.take(limit, 1, rows))
    thread.join()
    assert seen == list(range(500))


def stack(first, count):
    arrays = [aligned_empty((count, 2, 3), np.float32), aligned_empty((count, 2), np.int64)]
    for array in arrays:
        array[...] = np.arange(first, first + count).reshape(-1, *[1] * (array.ndim - 1))
    return arrays


def test_a_whole_stack_is_used_as_it_is_and_a_part_of_one_is_copied():
    buffer = filled(1)
    assert buffer.space() == 3  # to fill the block
    buffer.put_stack(stack(1, 3), 3, owned=True)
    assert buffer.space() == 4
    whole = stack(4, 4)
    buffer.put_stack(whole, 4, owned=True)
    theirs = stack(8, 6)
    buffer.put_stack(theirs, 6, owned=False)
    found = [buffer.take(4, 1, 4) for _ in range(4)]
    assert [numbers(batches) for batches in found] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
        [12, 13],
    ]
    assert found[1].stacks[0][0] is whole[0]
    assert not np.shares_memory(found[2].stacks[0][0], theirs[0])


def test_space_is_for_a_whole_stack_unless_more_is_awaited():
    buffer = filled(5, rows=4, size=6)  # room for two stacks
    found = []
    thread = threading.Thread(target=lambda: found.append(buffer.space()))
    buffer.take(1, 1, 4)
    thread.start()
    thread.join(10)
    assert found == [3]
    assert Buffer(6).space() == 0  # the form is not known yet
    buffer.put_stack(stack(5, 3), 3, owned=False)
    late = threading.Thread(target=lambda: found.append(buffer.space()))
    late.start()
    late.join(0.1)
    assert late.is_alive()  # one batch has room, but a stack is worth waiting for
    assert buffer.wait(8, 0.1) == (7, False)
    late.join(10)
    assert found == [3, 1]


def test_space_ends_when_the_buffer_is_closed():
    buffer = filled(8, rows=4, size=1)
    found = []
    thread = threading.Thread(target=lambda: found.append(buffer.space()))
    thread.start()
    buffer.close()
    thread.join(10)
    assert found == [0]


def test_batches_by_number():
    stacks = [[np.arange(t, 20, 2)] for t in range(2)]
    batches = Batches(stacks, 1, 6)  # of two towers, from the second step on
    assert [int(batches.batch(n)[0]) for n in range(6)] == [2, 3, 4, 5, 6, 7]
    first, rest = batches.split(2)
    assert [int(x.batch(n)[0]) for x in (first, rest) for n in range(x.count)] == [2, 3, 4, 5, 6, 7]


def test_rows_of_text_that_stay_empty_can_be_converted():
    for _ in range(3):
        np.full((64, 8), 0xFFFFFFFF, np.uint32)  # freed at once: memory that holds no characters
        rows = aligned_empty((64,), "<U8")
        assert (rows == "").all()
        assert tf.convert_to_tensor(rows).shape == (64,)
