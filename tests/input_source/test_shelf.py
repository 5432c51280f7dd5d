"""A line of batches between two threads, stacked while they wait."""

import threading

import numpy as np
import pytest

from towerpack.input_source.shelf import ALIGNMENT, Shelf, stacked


def batch(number, rows=2):
    return [np.full((rows, 3), number, np.float32), np.full(rows, number, np.int64)]


def filled(count, rows=4, room=100):
    shelf = Shelf(rows, room)
    for number in range(count):
        shelf.put(batch(number))
    return shelf


def numbers(stack, count):
    return stack.arrays[1][stack.first : stack.first + count, 0].tolist()


def test_batches_are_taken_without_a_copy():
    shelf = filled(8)
    block = shelf._blocks[0]
    stack = shelf.take(3)
    assert stack.arrays is block.arrays
    assert [array.shape for array in stack.arrays] == [(4, 2, 3), (4, 2)]
    assert all(array.ctypes.data % ALIGNMENT == 0 for array in stack.arrays)
    assert numbers(stack, 3) == [0, 1, 2]
    assert (len(shelf), shelf.in_line()) == (5, 1)
    rest = shelf.take(1)
    assert (rest.first, numbers(rest, 1)) == (3, [3])
    assert numbers(shelf.take(4), 4) == [4, 5, 6, 7]


def test_no_more_is_taken_than_is_in_line():
    shelf = filled(10)
    shelf.pop()
    with pytest.raises(RuntimeError, match="expected 4 batches in line, 9 are there"):
        shelf.take(4)
    assert numbers(shelf.take(3), 3) == [1, 2, 3]
    assert [int(shelf.pop()[1][0]) for _ in range(6)] == [4, 5, 6, 7, 8, 9]
    with pytest.raises(RuntimeError, match=r"expected wait\(\) before"):
        shelf.pop()


def test_what_was_taken_is_not_written_into():
    shelf = filled(1)
    first = shelf.take(1)
    for number in range(1, 9):
        shelf.put(batch(number))
    assert numbers(first, 1) == [0]
    assert numbers(shelf.take(3), 3) == [1, 2, 3]
    assert numbers(shelf.take(4), 4) == [4, 5, 6, 7]


def test_batches_of_another_form_come_in_their_turn():
    shelf = Shelf(4, 100)
    sizes = [2, 2, 1, 2, 2, 2, 2, 2, 3]
    for number, rows in enumerate(sizes):
        shelf.put(batch(number, rows))
    popped = [shelf.pop() for _ in sizes]
    assert [int(values[0]) for _, values in popped] == list(range(9))
    assert [len(values) for _, values in popped] == sizes
    assert len(shelf) == 0


def test_put_waits_for_room_until_closed():
    shelf = filled(3, room=3)
    thread = threading.Thread(target=lambda: [shelf.put(batch(n)) for n in (3, 4)])
    thread.start()
    shelf.pop()
    while len(shelf) < 3:
        assert thread.is_alive()
    assert int(shelf.pop()[1][0]) == 1
    thread.join(10)
    assert not thread.is_alive()
    blocked = threading.Thread(target=lambda: shelf.put(batch(5)))
    blocked.start()
    blocked.join(0.1)
    assert blocked.is_alive()
    shelf.close()
    blocked.join(10)
    assert not blocked.is_alive()
    assert len(shelf) == 3  # and the batch that came too late is not among them


def test_order_between_two_threads():
    shelf, rng = Shelf(8, 20), np.random.default_rng(0)
    thread = threading.Thread(target=lambda: [shelf.put(batch(n)) for n in range(500)])
    thread.start()
    seen = []
    while len(seen) < 500:
        count = min(int(rng.integers(1, 9)), len(shelf), shelf.in_line())
        if count:
            seen.extend(numbers(shelf.take(count), count))
    thread.join()
    assert seen == list(range(500))


def test_stacked():
    stack = stacked([batch(1), batch(2)], rows=3)
    assert numbers(stack, 2) == [1, 2]
    assert stack.arrays[0].shape == (3, 2, 3)


def test_a_block_that_was_emptied_before_another_form_came():
    shelf = filled(2)
    assert [int(shelf.pop()[1][0]) for _ in range(2)] == [0, 1]
    shelf.put(batch(2, rows=1))
    shelf.put(batch(3))
    assert [int(shelf.pop()[1][0]) for _ in range(2)] == [2, 3]
