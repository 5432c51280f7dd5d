"""A line of batches between two threads, stacked while they wait."""

import itertools
import threading

import numpy as np
import pytest

from towerpack.input_source.shelf import ALIGNMENT, Gap, Shelf, stacked


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


def test_several_batches_are_written_where_they_will_be_read():
    shelf = filled(1, rows=4)
    gap = shelf.gap(10)
    assert gap.rows == 3
    images = gap.allocate((4, 3), np.float32)  # two batches, one after another
    labels = gap.allocate((4,), np.int64)
    images[...], labels[...] = np.arange(12).reshape(4, 3), [1, 1, 2, 2]
    gap.fill([images.reshape(2, 2, 3), labels.reshape(2, 2)])
    assert len(shelf) == 1  # not before they are counted
    shelf.add(gap.block, 2)
    stack = shelf.take(3)
    assert numbers(stack, 3) == [0, 1, 2]
    assert np.shares_memory(images, stack.arrays[0]) and np.shares_memory(labels, stack.arrays[1])
    assert stack.arrays[0][2].tolist() == [[6, 7, 8], [9, 10, 11]]
    assert shelf.gap(10).rows == 1


def test_a_gap_is_never_wider_than_the_room_and_begins_a_block_where_one_is_full():
    shelf = filled(4, rows=4, room=6)
    gap = shelf.gap(10)
    assert (gap.rows, gap.block.filled) == (2, 0)
    assert Shelf(4, 6).gap(10) is None  # nobody knows the form yet
    gap.fill([np.ones((2, 2, 3), np.float32), np.array([[4, 4], [5, 5]])])  # made elsewhere: copied
    shelf.add(gap.block, 2)
    assert [int(shelf.pop()[1][0]) for _ in range(6)] == [0, 1, 2, 3, 4, 5]


def test_what_does_not_fit_into_a_gap_is_allocated_elsewhere():
    shelf = filled(1, rows=4)
    arrays = shelf._blocks[0].arrays
    for shape, dtype in [((4, 5), np.float32), ((4, 3), np.float64), ((8, 3), np.float32)]:
        found = shelf.gap(3).allocate(shape, dtype)
        assert (found.shape, found.dtype) == (shape, dtype)
        assert not any(np.shares_memory(found, array) for array in arrays)
    gap = shelf.gap(3)
    first, second = gap.allocate((2, 3), np.float32), gap.allocate((2, 3), np.float32)
    assert not np.shares_memory(first, second)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_components_of_one_form_may_be_asked_for_in_any_order(order):
    shelf = Shelf(4, 10)
    shelf.put([np.zeros(2)] * 3)
    gap = shelf.gap(1)
    stack = {component: gap.allocate((2,), np.float64) for component in order}
    for component, array in stack.items():
        array[...] = component
    gap.fill([stack[component][None] for component in range(3)])
    shelf.add(gap.block, 1)
    shelf.pop()
    assert [array.tolist() for array in shelf.pop()] == [[0, 0], [1, 1], [2, 2]]


def test_a_gap_waits_for_room_until_closed():
    shelf = filled(3, room=3)
    found: list[Gap | None] = []
    thread = threading.Thread(target=lambda: found.append(shelf.gap(2)))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    shelf.close()
    thread.join(10)
    assert found == [None]
