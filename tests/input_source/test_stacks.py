"""Single batches and stacks of a queue: the same order, positions and ends."""

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
    """Reads single batches and stacks, as a trainer does."""

    def __init__(self, source, state=None):
        self.source, self.seen = source, []
        source.setup(SIGNATURE)
        source.restore(state)
        source.start()

    def read(self, count):
        for _ in range(count):
            self.seen.append(self.source.next(rows=ROWS).tensors(0)[0].numpy().tolist())

    def take(self, limit=ROWS):
        """As many as are of one form and in one block."""
        self.source.wait(limit)
        found = self.source.next(limit, 1, ROWS)
        if found.count > 1:
            assert found.stacks[0][0].shape[0] == ROWS
        self.seen += [found.batch(n)[0].tolist() for n in range(found.count)]
        return found.count


def expected(count, begin=0):
    """21 batches in a pass, of which the last is of one datapoint."""
    batches = [[2 * i, 2 * i + 1] if i < 20 else [40] for i in range(21)]
    return [batches[i % 21] for i in range(begin, begin + count)]


@pytest.mark.parametrize("seed", range(6))
def test_stacks_and_single_batches_in_any_order_give_every_batch_once(seed):
    reader = Reader(QueueInput(flow(), queue_size=10))
    numbers = np.random.default_rng(seed)
    try:
        while reader.source.delivered < 150:
            if numbers.random() < 0.5:
                reader.read(int(numbers.integers(1, 4)))
            else:
                reader.take(int(numbers.integers(1, ROWS + 1)))
        assert reader.seen == expected(len(reader.seen))
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
        assert [first for first, _ in reader.seen] == list(range(0, 2 * len(reader.seen), 2))
    finally:
        reader.source.close()


@pytest.mark.parametrize("taken", [1, 7, 20, 21, 30])
def test_positions_are_exact(taken):
    reader = Reader(QueueInput(flow(), queue_size=6))
    try:
        while reader.source.delivered < taken:
            reader.take(min(ROWS, taken - reader.source.delivered))
        state = reader.source.state()
    finally:
        reader.source.close()
    again = Reader(QueueInput(flow(), queue_size=6), state)
    try:
        again.read(25)
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
        reader.seen = []
        reader.read(2)
        while reader.source.delivered < 12:
            reader.take()
        assert reader.seen == expected(len(reader.seen))
    finally:
        reader.source.close()


def test_refill_queue_goes_on_with_the_next_pass():
    reader = Reader(QueueInput(flow(), queue_size=6))
    try:
        for _ in range(3):
            reader.take()
        reader.source.refill_queue()
        reader.seen = []
        reader.read(3)
        reader.take()
        assert reader.seen == expected(len(reader.seen))
    finally:
        reader.source.close()


def test_after_a_refill_no_more_is_waited_for_than_the_queue_holds():
    reader = Reader(QueueInput(flow(), queue_size=3))  # fewer than a stack has rows
    try:
        for _ in range(4):
            reader.take()
        reader.source.refill_queue()
        reader.seen = []
        for _ in range(3):
            reader.take()
        assert reader.seen == expected(len(reader.seen))
    finally:
        reader.source.close()


class Failing(DataFromArrays):
    """Arrays of which the thirtieth row cannot be had."""

    def gather(self, indices, epoch):
        for index in indices:
            fail([index])
        return super().gather(indices, epoch)


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
        reader.take(1)
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
    """Batches that were handed out stacked."""
    source.setup(signature)
    source.start()
    seen = []
    try:
        while len(seen) < count:
            source.wait(min(ROWS, count - len(seen)))
            found = source.next(min(ROWS, count - len(seen)), 1, ROWS)
            seen += [[x.tolist() for x in found.batch(n)] for n in range(found.count)]
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

    def gather(self, indices, epoch):
        self.sizes.append(len(indices))
        return super().gather(indices, epoch)


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


def test_strings_that_are_longer_in_a_later_batch():
    words = np.array(["a" * (1 + index // 20) for index in range(60)])
    flow = BatchData(DataFromArrays(words), 2)
    signature = [tf.TensorSpec([None], tf.string, "word")]
    assert read_all(QueueInput(flow, queue_size=20), signature, 60) == passes(flow, 60)


def test_a_queue_of_the_users_and_host_batches():
    queue = tf.queue.FIFOQueue(3, [tf.int64])
    points = tf.queue.FIFOQueue(7, [tf.int64], shapes=[[]])
    for source in (
        QueueInput(flow(), queue),
        BatchQueueInput(DataFromArrays(np.arange(9)), 2),
        BatchQueueInput(DataFromArrays(np.arange(9)), 2, points),
    ):
        source.setup(SIGNATURE)
        source.start()
        try:
            for _ in range(2):
                found = [source.next(4, 1, 4) for _ in range(5)]
                seen = [np.asarray(b.batch(n)[0]).tolist() for b in found for n in range(b.count)]
                assert seen[:4] == [[0, 1], [2, 3], [4, 5], [6, 7]]
                source.reset_state()
        finally:
            source.close()
