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


def test_the_graph_is_offered_no_more_than_its_queue_holds():
    """More is kept ready than the queue holds, once batches were taken: it must not wait."""
    reader = Reader(QueueInput(flow(), queue_size=3))
    try:
        reader.take(1)
        while reader.taken < 100:
            ready = reader.source.wait(2 * ROWS, reader.taken)
            offered = reader.source.offer(ready, reader.taken)
            assert offered == min(ready, 3)
            reader.read(offered)
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


class Failing(DataFromArrays):
    """Arrays of which the thirtieth row cannot be had."""

    def gather(self, indices, pass_):
        for index in indices:
            fail([index])
        return super().gather(indices, pass_)


def fail(datapoint):
    if datapoint[0] == 30:
        raise ArithmeticError("the thirtieth")
    return datapoint


@pytest.mark.parametrize(
    "rows",
    [MapData(DataFromArrays(np.arange(41)), fail), Failing(np.arange(41))],
    ids=["one by one", "several batches at once"],
)
def test_an_error_comes_after_what_was_before_it(rows):
    reader = Reader(QueueInput(BatchData(rows, 2), queue_size=6))
    try:
        with pytest.raises(ArithmeticError, match="the thirtieth"):
            while True:
                reader.take(3)
        assert reader.seen == expected(15)
        with pytest.raises(ArithmeticError, match="the thirtieth"):
            reader.read(1)
    finally:
        reader.source.close()


def test_closed_while_the_thread_waits_for_room():
    reader = Reader(QueueInput(flow(), queue_size=5))
    reader.take()
    reader.take()
    thread = reader.source._thread
    reader.source.close()
    assert not thread.is_alive()


def read_all(source, signature, count):
    """Batches taken stacked, or one by one where they are not of the usual form."""
    source.setup(signature)
    source.start()
    read = tf.function(lambda: tuple(source.get_input_tensors())).get_concrete_function()
    seen = []
    try:
        while len(seen) < count:
            ready = source.uniform(min(ROWS, count - len(seen)), len(seen))
            if ready:
                arrays, first = source.take(ready, len(seen), ROWS)
                seen.extend(
                    [a[row].tolist() for a in arrays] for row in range(first, first + ready)
                )
            else:
                assert source.wait(1, len(seen)) == 1
                source.offer(1, len(seen))
                seen.append([tensor.numpy().tolist() for tensor in read()])
    finally:
        source.close()
    return seen


def passes(flow, count):
    """The first batches of all passes of a flow."""
    found = []
    while len(found) < count:
        epoch = len(found) // len(flow)
        found += [[x.tolist() for x in batch] for batch in flow.iterate(epoch)]
    return found[:count]


class Counting(DataFromArrays):
    """Arrays that count how often they are gathered from."""

    def __init__(self, *arrays, **arguments):
        super().__init__(*arrays, **arguments)
        self.sizes = []

    def gather(self, indices, pass_):
        self.sizes.append(len(indices))
        return super().gather(indices, pass_)


def test_several_batches_are_gathered_at_once():
    arrays = np.arange(300).reshape(150, 2), np.arange(150)
    source = Counting(*arrays, shuffle=True)
    signature = [tf.TensorSpec([None, 2], tf.int64, "x"), tf.TensorSpec([None], tf.int64, "y")]
    flow = BatchData(source, 4, remainder=True)
    seen = read_all(QueueInput(flow, queue_size=20), signature, 200)
    assert max(source.sizes[-20:]) > 4  # also after passes that ended with a short one
    assert seen == passes(flow, 200)


def test_two_components_of_one_form():
    arrays = np.arange(60), -np.arange(60)
    signature = [tf.TensorSpec([None], tf.int64, "x"), tf.TensorSpec([None], tf.int64, "y")]
    flow = BatchData(DataFromArrays(*arrays, shuffle=True), 3)
    assert read_all(QueueInput(flow, queue_size=20), signature, 50) == passes(flow, 50)


def test_dicts_in_another_order_than_the_inputs():
    arrays = {"y": np.arange(60), "unused": np.zeros(60), "x": np.arange(120).reshape(60, 2)}
    signature = [tf.TensorSpec([None, 2], tf.int64, "x"), tf.TensorSpec([None], tf.int64, "y")]
    flow = BatchData(DataFromArrays(arrays, shuffle=True), 3)
    expected = [[b["x"].tolist(), b["y"].tolist()] for e in range(3) for b in flow.iterate(e)]
    assert read_all(QueueInput(flow, queue_size=20), signature, 50) == expected[:50]


def test_batches_that_are_of_another_kind_together_come_one_by_one():
    class Wider(Counting):
        def gather(self, indices, pass_):
            (batch,) = super().gather(indices, pass_)
            return [batch.astype(np.float64) if len(indices) > 2 else batch]

    source = Wider(np.arange(40))
    flow = BatchData(source, 2)
    assert read_all(QueueInput(flow, queue_size=20), SIGNATURE, 60) == passes(flow, 60)
    assert sum(size > 2 for size in source.sizes) == 1  # it is not tried again


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
