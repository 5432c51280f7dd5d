"""What holds for every input source."""

from __future__ import annotations

import contextlib
import inspect
import json
import threading

import numpy as np
import pytest

from tests.dataflow.parallel.scripts import eventually
from tests.leftovers import threads
from towerpack import input_source
from towerpack._tensorflow import tf
from towerpack.dataflow import BatchData, DataFlow, DataFromList, MapData, send_dataflow_zmq
from towerpack.input_source import (
    BatchQueueInput,
    DummyConstantInput,
    EndOfData,
    FeedfreeInput,
    FeedInput,
    InputSource,
    PerWorkerInput,
    PlaceholderInput,
    QueueInput,
    SignatureError,
    StagingInput,
    TensorInput,
    TFDatasetInput,
    ZMQInput,
    flow_input,
    remap_input_source,
)
from towerpack.input_source.buffer import aligned_empty

SIGNATURE = [tf.TensorSpec([None, 2], tf.float32, "x"), tf.TensorSpec([None], tf.int32, "label")]
BATCH, BATCHES = 2, 5


def points():
    """Ten datapoints; the label is the number of each."""
    return DataFromList(
        [[np.full([2], i, np.float32), np.int32(i)] for i in range(BATCH * BATCHES)], shuffle=False
    )


def batches():
    return BatchData(points(), BATCH)


def batch_dicts():
    return MapData(batches(), lambda dp: {"label": dp[1], "else": 0, "x": dp[0]})


def dataset():
    x, label = (np.stack(parts) for parts in zip(*points(), strict=True))
    return tf.data.Dataset.from_tensor_slices((x, label)).batch(BATCH, drop_remainder=True)


def in_variable():
    """A function whose tensors come in order, too: its position is in a variable."""
    position = tf.Variable(0, trainable=False)

    def tensors():
        first = BATCH * (position.assign_add(1) - 1) % (BATCH * BATCHES)
        label = tf.ensure_shape(first + tf.range(BATCH), [BATCH])
        return [tf.cast(tf.stack([label, label], axis=1), tf.float32), label]

    return tensors


MAKE = {
    "queue": lambda: QueueInput(batches(), queue_size=3),
    "queue of dicts": lambda: QueueInput(batch_dicts()),
    "feed": lambda: FeedInput(batches()),
    "feed of dicts": lambda: FeedInput(batch_dicts()),
    "batch queue": lambda: BatchQueueInput(points(), BATCH, queue_size=7),
    "dataset": lambda: TFDatasetInput(dataset()),
    "dataset of dicts": lambda: TFDatasetInput(dataset().map(lambda x, y: {"label": y, "x": x})),
    "dataset of a flow": lambda: TFDatasetInput(batches()),
    "staged queue": lambda: StagingInput(QueueInput(batches(), queue_size=3)),
    "staged deeply": lambda: StagingInput(QueueInput(batches()), nr_stage=3),
    "staged dataset": lambda: StagingInput(TFDatasetInput(dataset())),
    "staged flow of a dataset": lambda: StagingInput(TFDatasetInput(batches())),
    "remapped": lambda: remap_input_source(
        QueueInput(MapData(batches(), lambda dp: dp[::-1])), ["label", "x"]
    ),
    "tensors": lambda: TensorInput(in_variable(), size=BATCHES),
}
NO_POSITION = ("tensors",)
MAPPED = ("queue of dicts", "feed of dicts", "remapped")  # by functions: nothing is certain
FLOWS = {
    "queue": QueueInput,
    "feed": FeedInput,
    "batch queue": lambda ds: BatchQueueInput(points_of(ds), BATCH),
    "dataset of a flow": TFDatasetInput,
    "staged": lambda ds: StagingInput(QueueInput(ds)),
    "remapped": lambda ds: remap_input_source(QueueInput(ds), ["x", "label"]),
}


def points_of(ds):
    return MapData(ds, lambda dp: [part[0] for part in dp])


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = threads()
    yield
    eventually(lambda: not threads() - before, "threads that end")


@contextlib.contextmanager
def started(source, state=None):
    source.restore(state)
    source.setup(SIGNATURE)
    source.start()

    def take():
        batches = source.next()
        assert batches.count == 1
        x, label = batches.tensors(0)
        np.testing.assert_array_equal(x[:, 0], label)
        return label.numpy().tolist()

    try:
        yield take
    finally:
        source.close()


def expected(count, first=0):
    return [[BATCH * (i % BATCHES) + j for j in range(BATCH)] for i in range(first, first + count)]


def test_every_source_is_here():
    found = {
        value
        for name in input_source.__all__
        if inspect.isclass(value := getattr(input_source, name)) and issubclass(value, InputSource)
    }
    made = {type(make()) for make in MAKE.values()}
    elsewhere = {InputSource, FeedfreeInput, PlaceholderInput, DummyConstantInput, ZMQInput}
    elsewhere.add(PerWorkerInput)  # hands out no batches here
    assert found <= made | elsewhere


@pytest.mark.parametrize("name", MAKE)
def test_P2_everything_comes_once_and_in_order_pass_after_pass(name):
    source = MAKE[name]()
    with started(source) as take:
        assert [take() for _ in range(3 * BATCHES)] == expected(3 * BATCHES)
        assert source.size() == BATCHES
        source.raise_failure()
        assert source.waited >= 0
        assert all(isinstance(value, float) for value in source.summaries().values())


class Reusing(DataFlow):
    """Gives the same arrays again and again, with other content; TensorFlow could use them."""

    def __len__(self):
        return BATCHES

    def __iter__(self):
        x = aligned_empty((BATCH, 2), np.dtype(np.float32))
        label = aligned_empty((BATCH,), np.dtype(np.int32))
        for number in range(BATCHES):
            label[:] = range(BATCH * number, BATCH * (number + 1))
            x[...] = label[:, None]
            yield [x, label]


class ReusingPoints(Reusing):
    def __len__(self):
        return BATCH * BATCHES

    def __iter__(self):
        x, label = aligned_empty((2,), np.dtype(np.float32)), aligned_empty((), np.dtype(np.int32))
        for number in range(BATCH * BATCHES):
            x[...], label[...] = number, number
            yield [x, label]


@pytest.mark.parametrize("name", FLOWS)
def test_what_was_read_ahead_does_not_change_when_the_flow_uses_its_arrays_again(name):
    if name == "batch queue":
        source = BatchQueueInput(ReusingPoints(), BATCH)
    else:
        source = FLOWS[name](Reusing())
    with started(source) as take:
        source.wait(2 * BATCHES)  # so that most of it is there before the first is taken
        assert [take() for _ in range(3 * BATCHES)] == expected(3 * BATCHES)


@pytest.mark.parametrize("name", MAKE)
def test_each_call_is_a_read_of_its_own(name):
    source = MAKE[name]()
    source.setup(SIGNATURE)

    @tf.function(autograph=False)
    def two_towers():
        first, second = source.get_input_tensors(), source.get_input_tensors()
        for tensors in (first, second):
            assert [t.dtype for t in tensors] == [spec.dtype for spec in SIGNATURE]
            for spec, tensor in zip(SIGNATURE, tensors, strict=True):
                assert spec.shape.is_compatible_with(tensor.shape)
        return first[1], second[1]

    step = two_towers.get_concrete_function()
    source.start()
    for taken in range(0, 6, 2):  # each step has the next two batches, one for each tower
        assert sorted(label.numpy().tolist() for label in step()) == sorted(expected(2, taken))
    source.close()


@pytest.mark.parametrize("towers", [1, 2, 3])
@pytest.mark.parametrize("name", MAKE)
def test_stacked_batches_are_the_same_in_the_same_order(name, towers):
    source = MAKE[name]()
    source.setup(SIGNATURE)
    source.start()
    received, most = [], 0
    while len(received) < 6 * BATCHES:
        source.wait(towers * 4, 1.0)
        found = source.next(towers * 4, towers, towers * 4)
        assert found.count % towers == 0
        most = max(most, found.count)
        received += [np.asarray(found.batch(n)[1]).tolist() for n in range(found.count)]
        assert source.delivered == len(received)
    assert received == expected(len(received))
    assert most > towers
    source.close()


@pytest.mark.parametrize("name", MAKE)
def test_single_batches_and_stacks_by_turns(name):
    source = MAKE[name]()
    source.setup(SIGNATURE)
    source.start()
    received = []
    for limit, rows in [(1, 1), (4, 4), (1, 4), (3, 4), (4, 4), (8, 8), (1, 8), (1, 1)] * 3:
        source.wait(limit, 0.01)
        found = source.next(limit, 1, rows)
        received += [np.asarray(found.batch(n)[1]).tolist() for n in range(found.count)]
        if found.stacked and limit > 1 and "staged" not in name:  # XLA needs the same shape
            assert len(found.stacks[0][0]) in (rows, found.count)
    assert received == expected(len(received))
    source.close()


@pytest.mark.parametrize("name", [name for name in MAKE if name not in NO_POSITION])
def test_P3_a_position_is_that_of_the_batches_that_steps_have_trained_on(name):
    """Those that are held were handed out, but a call ended before it came to them."""
    with started(source := MAKE[name]()):
        source.wait(3, 1.0)
        found = source.next(3, 1, 4)
        source.held = found.count - 1
        state = source.state()
    with started(MAKE[name](), state) as take:
        assert take() == expected(1, 1)[0]


@pytest.mark.parametrize("taken", [0, 1, BATCHES, 2 * BATCHES + 1])
@pytest.mark.parametrize("name", [name for name in MAKE if name not in NO_POSITION])
def test_P3_a_restored_position_gives_the_rest_of_the_stream(name, taken, monkeypatch):
    monkeypatch.setattr(flow_input, "MARK_SECONDS", 0.002)  # so that marks and skips both occur
    with started(source := MAKE[name]()) as take:
        for _ in range(taken):
            take()
        state = json.loads(json.dumps(source.state()))
    with started(resumed := MAKE[name](), state) as take:
        assert [take() for _ in range(2 * BATCHES + 1)] == expected(2 * BATCHES + 1, taken)
        epoch, number = divmod(taken + 2 * BATCHES, BATCHES)
        number *= BATCH if isinstance(resumed, BatchQueueInput) else 1
        assert f"{number} of pass {epoch}" in resumed.position(2 * BATCHES)
        state = resumed.state()
    with started(MAKE[name](), state) as take:
        assert [take() for _ in range(BATCHES)] == expected(BATCHES, taken + 2 * BATCHES + 1)


@pytest.mark.parametrize("name", [name for name in MAKE if name not in NO_POSITION])
def test_a_position_of_another_source_is_refused(name):
    with pytest.raises(ValueError, match="another input source"):
        MAKE[name]().restore({"index": 7})
    with started(source := MAKE[name]()):
        with pytest.raises(RuntimeError, match="before start"):
            source.restore(source.state())


@pytest.mark.parametrize("name", [name for name in MAKE if name not in NO_POSITION])
def test_reset_state_goes_back_to_the_beginning(name):
    source = MAKE[name]()
    source.setup(SIGNATURE)
    for count in (1, BATCHES, 2 * BATCHES + 1):
        source.reset_state()
        source.start()
        received = [source.next().tensors(0)[1].numpy().tolist() for _ in range(count)]
        assert received == expected(count)
        assert source.delivered == count
    source.close()


@pytest.mark.parametrize("name", MAKE)
def test_everything_may_be_done_twice(name):
    source = MAKE[name]()
    source.close()
    for _ in range(2):
        source.setup(SIGNATURE)
        source.setup(SIGNATURE)
        read = tf.function(source.get_input_tensors, autograph=False).get_concrete_function()
        source.start()
        source.start()
        read()
        source.next()
        source.close()
        source.close()


@pytest.mark.parametrize("name", MAKE)
def test_the_graph_knows_the_shapes_that_every_batch_has(name):
    source = MAKE[name]()
    source.setup(SIGNATURE)
    assert [spec.name for spec in source.specs()] == ["x", "label"]
    assert [spec.shape[0] for spec in source.specs()] == [2, 2] or name in MAPPED
    source.close()


@pytest.mark.parametrize("name", FLOWS)
def test_F2_a_failing_flow_ends_with_its_own_exception_after_what_came_before(name):
    def fail(datapoint):
        if datapoint[1][0] == 6:
            raise ZeroDivisionError("broken sample")
        return datapoint

    source = FLOWS[name](MapData(batches(), fail))
    with started(source) as take:
        received = []
        with pytest.raises(ZeroDivisionError, match="broken sample"):
            for _ in range(BATCHES):
                received.append(take())
        with pytest.raises(ZeroDivisionError, match="broken sample"):
            source.raise_failure()
        if name == "batch queue":
            assert received == [[0, 2]]
        else:
            assert received == expected(3)


@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda dp: dp[:1], "expected 2 components, received 1"),
        (lambda dp: [dp[0].astype(np.float16), dp[1]], "'x' has another dtype"),
        (lambda dp: [dp[0][:, :1], dp[1]], "'x' has another shape"),
        (lambda dp: {"x": dp[0]}, r"\['label'\] are missing"),
    ],
)
def test_B2_a_misfit_is_refused_with_both_sides(name, change, problem):
    def changed(datapoint):
        if name == "batch queue":
            datapoint = [part[None] for part in datapoint]
            datapoint = change(datapoint)
            if isinstance(datapoint, dict):
                return {key: part[0] for key, part in datapoint.items()}
            return [part[0] for part in datapoint]
        return change(datapoint)

    source = (
        BatchQueueInput(MapData(points(), changed), BATCH)
        if name == "batch queue"
        else FLOWS[name](MapData(batches(), changed))
    )
    with started(source) as take:
        with pytest.raises(SignatureError, match=problem) as caught:
            take()
    assert "the model expects   x: float32" in str(caught.value)
    assert "the flow gives" in str(caught.value)


def test_B2_a_misfit_in_the_middle_is_refused_after_what_came_before():
    def change(datapoint):
        x, label = datapoint
        return [x, label.astype(np.int16) if label[0] == 4 else label]

    with started(QueueInput(MapData(batches(), change))) as take:
        assert [take() for _ in range(2)] == expected(2)
        with pytest.raises(SignatureError, match="'label' has another dtype"):
            take()


def test_B2_what_arrays_may_be_like():
    specs = [
        tf.TensorSpec([2, 3], tf.float32, "fortran"),
        tf.TensorSpec([3], tf.float32, "big endian"),
        tf.TensorSpec([None, 4], tf.float32, "empty"),
        tf.TensorSpec([2], tf.bfloat16, "bfloat16"),
        tf.TensorSpec([2], tf.string, "text"),
        tf.TensorSpec([2], tf.string, "objects"),
        tf.TensorSpec([3], tf.int32, "strided"),
        tf.TensorSpec([], tf.int32, "number"),
        tf.TensorSpec([], tf.float32, "scalar"),
    ]
    values = [
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        np.arange(3, dtype=">f4"),
        np.zeros([0, 4], np.float32),
        np.array([1.5, -2], tf.bfloat16.as_numpy_dtype),
        np.array(["a", "ü"]),
        np.array([b"x", "y"], object),
        np.arange(6, dtype=np.int32)[::2],
        7,
        0.5,
    ]
    for kind in (QueueInput, FeedInput):
        source = kind(DataFromList([values] * 3))
        source.setup(specs)
        source.start()
        received = [tensor.numpy() for tensor in source.get_input_tensors()]
        source.close()
        for value, ours in zip(values[:4], received[:4], strict=True):
            np.testing.assert_array_equal(value, ours)
        assert received[4].tolist() == [b"a", "ü".encode()]
        assert received[5].tolist() == [b"x", b"y"]
        assert received[6].tolist() == [0, 2, 4]
        assert received[7:] == [7, 0.5]


def test_zmq_input_takes_what_is_sent_and_ends_when_the_senders_have():
    sender = threading.Thread(
        target=send_dataflow_zmq, args=(batches(), "ipc://input.socket"), kwargs={"repeat": 2}
    )
    sender.start()
    source = ZMQInput("ipc://input.socket", hwm=4)
    assert source.size() is None
    with started(source) as take:
        assert [take() for _ in range(2 * BATCHES)] == expected(2 * BATCHES)
        with pytest.raises(EndOfData):
            take()
        assert isinstance(json.dumps(source.state()), str)
        assert source.state()["skip"] == 0, "a remote flow cannot be wound back"
    sender.join()


def test_zmq_input_as_a_dataset():
    sender = threading.Thread(
        target=send_dataflow_zmq, args=(batches(), "ipc://dataset.socket"), kwargs={"repeat": 1}
    )
    sender.start()
    received = ZMQInput("ipc://dataset.socket").to_dataset(SIGNATURE).take(BATCHES)
    assert [label.numpy().tolist() for _, label in received] == expected(BATCHES)
    sender.join()
