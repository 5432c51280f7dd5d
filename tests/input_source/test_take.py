"""Batches that are taken past the graph: the same order, positions and ends as through it."""

import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.dataflow import BatchData, DataFromArrays, MapData
from towerpack.input_source import BatchQueueInput, QueueInput

ROWS = 4
SIGNATURE = [tf.TensorSpec([None], tf.int64, "x")]


def flow(size=41, batch=2, **arguments):
    return BatchData(DataFromArrays(np.arange(size), **arguments), batch, remainder=True)


class Reader:
    """Reads a source in both ways, as a trainer does."""

    def __init__(self, source, state=None):
        self.source, self.taken, self.seen = source, 0, []
        source.setup(SIGNATURE)
        source.restore(state)
        source.start()
        self.read_one = tf.function(lambda: source.get_input_tensors()[0]).get_concrete_function()

    def read(self, count):
        assert self.source.wait(count, self.taken) == count
        self.source.offer(count, self.taken)
        for _ in range(count):
            self.seen.append(self.read_one().numpy().tolist())
        self.taken += count

    def take(self, limit=ROWS):
        """As many as are of the usual form and in line, at least one if there is one at all."""
        count = self.source.uniform(limit, self.taken)
        if count:
            (array,), first = self.source.take(count, self.taken, ROWS)
            assert array.shape[0] == ROWS
            self.seen.extend(array[first : first + count].tolist())
            self.taken += count
        return count


def expected(count, begin=0):
    """21 batches in a pass, of which the last is of one datapoint."""
    batches = [[2 * i, 2 * i + 1] if i < 20 else [40] for i in range(21)]
    return [batches[i % 21] for i in range(begin, begin + count)]


@pytest.mark.parametrize("seed", range(6))
def test_both_ways_in_any_order_give_every_batch_once(seed):
    reader = Reader(QueueInput(flow(), queue_size=10))
    numbers = np.random.default_rng(seed)
    try:
        while reader.taken < 150:
            if numbers.random() < 0.5 or not reader.take(int(numbers.integers(1, ROWS + 1))):
                reader.read(int(numbers.integers(1, 4)))
        assert reader.seen == expected(reader.taken)
    finally:
        reader.source.close()


def test_after_a_short_piece_whole_blocks_are_taken_again():
    reader = Reader(QueueInput(DataFromArrays(np.arange(400).reshape(200, 2)), queue_size=8))
    try:
        reader.take(1)
        pieces = [reader.take() for _ in range(12)]
        assert pieces[-3:] == [ROWS] * 3
        reader.read(1)
        assert [reader.take() for _ in range(3)] == [ROWS - 1, ROWS, ROWS]
        assert [first for first, _ in reader.seen] == list(range(0, 2 * reader.taken, 2))
    finally:
        reader.source.close()


@pytest.mark.parametrize("taken", [1, 7, 20, 21, 30])
def test_positions_are_exact(taken):
    reader = Reader(QueueInput(flow(), queue_size=6))
    try:
        while reader.taken < taken:
            if not reader.take(min(ROWS, taken - reader.taken)):
                reader.read(1)
        state = reader.source.state(reader.taken)
    finally:
        reader.source.close()
    again = Reader(QueueInput(flow(), queue_size=6), state)
    try:
        for _ in range(25):
            again.read(1)
        assert again.seen == expected(25, begin=taken)
        assert "of pass" in again.source.position(24)
    finally:
        again.source.close()


def test_reset_state_begins_again():
    reader = Reader(QueueInput(flow(), queue_size=6))
    try:
        for _ in range(5):
            reader.take()
        reader.source.reset_state()
        reader.taken, reader.seen = 0, []
        reader.read(2)
        while reader.taken < 12:
            reader.take()
        assert reader.seen == expected(reader.taken)
    finally:
        reader.source.close()


def test_refill_queue_goes_on_with_the_next_pass():
    reader = Reader(QueueInput(flow(), queue_size=6))
    try:
        for _ in range(3):
            reader.take()
        reader.source.refill_queue()
        reader.seen, before = [], reader.taken
        reader.read(3)
        reader.take()
        assert reader.seen == expected(reader.taken - before)
    finally:
        reader.source.close()


def test_after_a_refill_no_more_is_waited_for_than_the_queue_holds():
    reader = Reader(QueueInput(flow(), queue_size=3))  # fewer than a stack has rows
    try:
        for _ in range(4):
            reader.take()
        reader.source.refill_queue()
        reader.seen, before = [], reader.taken
        for _ in range(3):
            reader.take()
        assert reader.seen == expected(reader.taken - before)
    finally:
        reader.source.close()


def test_an_error_comes_after_what_was_before_it():
    def fail(datapoint):
        if datapoint[0] == 30:
            raise ArithmeticError("the thirtieth")
        return datapoint

    source = QueueInput(BatchData(MapData(DataFromArrays(np.arange(41)), fail), 2), queue_size=6)
    reader = Reader(source)
    try:
        with pytest.raises(Exception, match="the thirtieth"):
            while True:
                reader.take(3)
        assert reader.seen == expected(15)
        with pytest.raises(Exception, match="the thirtieth"):
            reader.read(1)
    finally:
        source.close()


def test_closed_while_the_thread_waits_for_room():
    reader = Reader(QueueInput(flow(), queue_size=5))
    reader.take()
    reader.take()
    thread = reader.source._thread
    reader.source.close()
    assert not thread.is_alive()


def test_sources_that_only_the_graph_can_read():
    queue = tf.queue.FIFOQueue(10, [tf.int64])
    for source in (QueueInput(flow(), queue), BatchQueueInput(DataFromArrays(np.arange(9)), 2)):
        source.setup(SIGNATURE)
        source.start()
        try:
            source.wait(1, 0)
            assert source.take(1, 0, ROWS) is None
        finally:
            source.close()
