import itertools
import json
import queue
import threading

import numpy as np
import pytest

from tests.leftovers import threads
from tests.tiny_model import TinyModel, tiny_flow
from towerpack._tensorflow import tf
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromArrays,
    DataFromList,
    DataFromQueue,
    MapData,
    MultiProcessMapData,
    MultiProcessRunner,
)
from towerpack.dataflow.statistics import walk
from towerpack.input_source import EndOfData, QueueInput, SignatureError, flow_input
from towerpack.input_source.signature import as_inputs

SPECS = [tf.TensorSpec([None, 2], tf.float32, "x"), tf.TensorSpec([None], tf.int32, "label")]
GOOD = [np.zeros([3, 2], np.float32), np.zeros([3], np.int32)]


def start(flow, state=None, **options):
    source = QueueInput(flow, **options)
    source.restore(state)
    source.setup(TinyModel().input_signature)
    source.start()
    return source


def test_everything_comes_in_order_epoch_after_epoch():
    flow = tiny_flow()
    source = start(flow)
    read = tf.function(source.get_input_tensors, autograph=False)
    received = [read()[0].numpy() for _ in range(2 * len(flow))]
    expected = [x for epoch in (0, 1) for x, _ in flow.iterate(epoch)]
    np.testing.assert_array_equal(received, expected)
    assert source.size() == len(flow)
    assert source.summaries()["QueueInput/queue_size"] > 0
    source.close()


def test_close_ends_the_thread_also_when_the_queue_is_full_and_twice():
    before = threads()
    source = start(tiny_flow(), queue_size=1)
    source.close()
    source.close()
    assert not threads() - before


@pytest.mark.parametrize("says_so", [True, False])
def test_a_producer_that_stops_leaves_no_thread(says_so):
    before, filled = threads(), queue.Queue()
    for datapoint in tiny_flow():
        filled.put(datapoint)
    if says_so:
        filled.put(None)
    source = start(DataFromQueue(filled))
    for _ in range(len(tiny_flow())):
        source.get_input_tensors()
    if says_so:  # training ends
        with pytest.raises(EndOfData):
            source.get_input_tensors()
        with pytest.raises(tf.errors.OutOfRangeError):
            read_function(source)()
        source.raise_failure()
    source.close()
    assert not threads() - before


def test_an_exception_of_the_flow_is_raised_after_what_was_read():
    def fail(datapoint):
        if datapoint[1][0] >= 0:
            raise ZeroDivisionError("broken sample")
        return datapoint

    source = start(MapData(tiny_flow(), fail))
    with pytest.raises(ZeroDivisionError, match="broken sample"):
        source.get_input_tensors()
    with pytest.raises(ZeroDivisionError, match="broken sample"):
        source.raise_failure()
    source.close()


def test_an_empty_flow_is_an_error_and_not_an_endless_loop():
    source = start(MapData(DataFromArrays(np.zeros([3, 2])), lambda dp: None))
    with pytest.raises(ValueError, match="produced nothing"):
        source.get_input_tensors()
    source.close()


def test_dicts_go_by_name():
    inputs = as_inputs({"label": GOOD[1], "other": 1, "x": GOOD[0]}, SPECS, "Flow")
    assert inputs[0] is GOOD[0]
    assert inputs[1] is GOOD[1]


@pytest.mark.parametrize(
    ("datapoint", "problem"),
    [
        (GOOD[:1], "expected 2 components, received 1"),
        ([GOOD[0].astype(np.float16), GOOD[1]], "'x' has another dtype"),
        ([GOOD[0][:, :1], GOOD[1]], "'x' has another shape"),
        ([GOOD[0], np.array([None] * 3)], "'label' is made of Python objects"),
        ({"x": GOOD[0]}, r"\['label'\] are missing"),
    ],
)
def test_a_misfit_is_refused_with_both_sides(datapoint, problem):
    with pytest.raises(SignatureError, match=problem) as caught:
        as_inputs(datapoint, SPECS, "Flow")
    assert "the model expects   x: float32 (None, 2), label: int32 (None,)" in str(caught.value)
    assert "the flow gives" in str(caught.value)


def read_function(source):
    return tf.function(source.get_input_tensors, autograph=False).get_concrete_function()


def stream(flow, count, first=0):
    """The batches `first` to `first + count` of a flow's endless stream."""
    endless = (datapoint for epoch in itertools.count() for datapoint in flow.iterate(epoch))
    return [x for x, _ in itertools.islice(endless, first, first + count)]


FLOWS = {
    "indexed": tiny_flow,
    "short last batch": lambda: BatchData(tiny_flow().ds, 7, remainder=True),
    "generator": lambda: MapData(Replayed(tiny_flow()), lambda dp: dp),
    "workers": lambda: MultiProcessMapData(tiny_flow(), 1, lambda dp: dp, strict=True),
}


class Replayed(DataFlow):
    """A flow written as a generator, whose state is a count."""

    def __init__(self, ds):
        self.ds = ds

    def __iter__(self):
        yield from self.ds


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("taken", [0, 1, 4, 6, 17])
def test_P3_the_rest_of_the_stream_follows_a_restored_position(flow, taken, monkeypatch):
    monkeypatch.setattr(flow_input, "MARK_SECONDS", 0.003)  # so that marks and skips both occur
    source = start(FLOWS[flow](), queue_size=5)
    read = read_function(source)
    for _ in range(taken):
        read()
    state = json.loads(json.dumps(source.state()))
    source.close()

    resumed = QueueInput(FLOWS[flow](), queue_size=5)
    resumed.restore(state)
    resumed.setup(TinyModel().input_signature)
    assert resumed.state() == state
    resumed.start()
    read = read_function(resumed)
    expected = stream(FLOWS[flow](), 15, taken)
    received = [read()[0].numpy() for _ in range(15)]
    for ours, theirs in zip(received, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)

    state = resumed.state()  # and once more, from a position that was itself restored
    resumed.close()
    again = start(FLOWS[flow](), state=state)
    np.testing.assert_array_equal(
        read_function(again)()[0], stream(FLOWS[flow](), 1, taken + 15)[0]
    )
    again.close()


@pytest.mark.parametrize("seconds", [0, 1000])
def test_P3_a_position_is_exact_however_few_marks_there_are(seconds, monkeypatch):
    monkeypatch.setattr(flow_input, "MARK_SECONDS", seconds)
    source = start(tiny_flow(), queue_size=40)
    assert source.wait(40) == 40
    for delivered in range(41):
        state = source.state()
        before = state["flow"]["epoch"] * 6 + state["batch"]
        assert before + state["skip"] == delivered
        source.next()
    source.close()


def test_a_state_of_something_else_is_refused():
    with pytest.raises(ValueError, match="another input source"):
        QueueInput(tiny_flow()).restore({"index": 3})


def test_wait_says_how_many_can_be_read_without_waiting_and_measures():
    gate = threading.Event()

    def slow(datapoint):
        gate.wait()
        return datapoint

    source = start(MapData(tiny_flow(), slow), queue_size=4)
    assert source.wait(seconds=0.01) == 0
    assert source.waited >= 0.01
    gate.set()
    assert source.wait() == 1
    assert source.wait(3) == 3
    assert source.wait(100) == 4, "no more than the queue holds"
    source.close()


def test_wait_before_start_does_not_hang():
    source = QueueInput(tiny_flow())
    source.setup(TinyModel().input_signature)
    with pytest.raises(RuntimeError, match="start"):
        source.wait()


def test_ctrl_c_is_noticed_while_waiting(monkeypatch):
    monkeypatch.setattr("towerpack.input_source.base.LOOK_SECONDS", 0.001)
    gate, calls = threading.Event(), []

    def idle():
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    source = start(MapData(tiny_flow(), lambda dp: gate.wait() and dp))
    with pytest.raises(KeyboardInterrupt):
        source.wait(idle=idle)
    gate.set()
    assert source.wait() == 1
    source.close()


def test_wait_gives_what_came_before_a_failure_and_then_the_failure():
    def fail(index):
        if index == 3:
            raise ZeroDivisionError("broken sample")
        return [np.zeros([2, 4], np.float32), np.zeros([2], np.int32)]

    source = start(MapData(range(9), fail))
    assert source.wait(9) == 3
    read = read_function(source)
    for _ in range(3):
        read()
    with pytest.raises(ZeroDivisionError, match="broken sample"):
        source.wait(9)
    with pytest.raises(ZeroDivisionError, match="broken sample"):
        source.raise_failure()
    source.close()


def test_a_stack_ends_before_a_batch_of_another_shape():
    source = start(BatchData(tiny_flow().ds, 7, remainder=True))  # 8 of 7, and one of 4
    counts = []
    for _ in range(6):
        source.wait(20)
        found = source.next(5, 1, 5)
        counts.append((found.count, len(found.batch(0)[0])))
        assert all(len(found.batch(n)[0]) == counts[-1][1] for n in range(found.count))
    assert counts == [(5, 7), (3, 7), (1, 4), (5, 7), (3, 7), (1, 4)]
    source.close()


def test_position_names_pass_and_batch_also_after_a_restart():
    source = start(tiny_flow())
    source.wait(20)
    assert source.position(15) == "batch 3 of pass 2 of BatchData, both counted from 0"
    assert "since the start" in source.position(10**6)
    source.next(15, 1, 15)
    while source.delivered < 15:
        source.next()
    state = source.state()
    source.close()
    source = start(tiny_flow(), state=state)
    source.wait(5)
    assert source.position(0).startswith("batch 3 of pass 2")
    assert source.position(4).startswith("batch 1 of pass 3")
    source.close()


def test_reset_state_begins_anew_and_refill_queue_with_the_next_pass():
    flow = tiny_flow()
    source = start(flow, queue_size=3)
    read = read_function(source)
    for _ in range(2):
        np.testing.assert_array_equal([read()[0] for _ in range(8)], stream(flow, 8))
        source.reset_state()
    read()
    source.refill_queue()
    np.testing.assert_array_equal(read()[0], stream(flow, 1, 6)[0])
    assert source.wait(3) == 3
    assert source.position(0).startswith("batch 0 of pass 1")
    assert source.state()["flow"]["epoch"] == 1
    source.close()


def test_a_source_can_be_set_up_again_after_it_was_closed():
    before = threads()
    source = QueueInput(tiny_flow())
    for _ in range(2):
        source.setup(TinyModel().input_signature)
        source.start()
        source.start()
        np.testing.assert_array_equal(read_function(source)()[0], stream(tiny_flow(), 1)[0])
        source.close()
    assert not threads() - before


def test_a_queue_of_the_users_own():
    own = tf.queue.FIFOQueue(2, [tf.float32, tf.int32])
    source = start(tiny_flow(), queue=own)
    np.testing.assert_array_equal(own.dequeue()[0], stream(tiny_flow(), 1)[0])
    source.close()
    with pytest.raises(ValueError, match="expected a queue of 2 components"):
        start(tiny_flow(), queue=tf.queue.FIFOQueue(2, [tf.float32]))


def test_the_size_of_every_batch_is_known_if_the_flow_is_certain():
    rows = DataFromArrays(np.zeros((10, 2), np.float32), np.zeros(10, np.int32))
    queue = tf.queue.FIFOQueue(2, [tf.float32, tf.int32])
    for flow, options, size in [
        (BatchData(rows, 4), {}, 4),
        (BatchData(rows, 4, remainder=True), {}, None),
        (BatchData(rows, 4), {"queue": queue}, None),
    ]:
        source = QueueInput(flow, **options)
        source.setup(SPECS)
        assert [spec.shape.as_list() for spec in source.specs()] == [[size, 2], [size]]
        read = read_function(source)
        assert read.structured_outputs[0].shape.as_list() == [size, 2]


def test_nothing_is_copied_between_shared_memory_and_the_step():
    seen = []
    source = QueueInput(MultiProcessMapData(tiny_flow(), 1, lambda dp: dp, strict=True))
    is_ours = source._is_ours
    source._is_ours = lambda array: seen.append(array) or is_ours(array)
    source.setup(TinyModel().input_signature)
    source.start()
    found = [source.next().batch(0) for _ in range(3)]
    source.close()
    for number, arrays in enumerate(found):
        for ours, theirs in zip(seen[2 * number : 2 * number + 2], arrays, strict=True):
            assert np.shares_memory(ours, theirs)
            assert not ours.flags.owndata, "a view of the shared memory"


def test_steps_in_a_loop_of_the_graph_take_batches_in_order():
    source = start(tiny_flow())

    @tf.function(autograph=False)
    def loop(count):
        rows = tf.TensorArray(tf.float32, size=count, element_shape=[10, 4])
        _, rows = tf.while_loop(
            lambda i, _: i < count,
            lambda i, rows: (i + 1, rows.write(i, source.get_input_tensors()[0])),
            (0, rows),
        )
        return rows.stack()

    np.testing.assert_array_equal(loop(tf.constant(40)), stream(tiny_flow(), 40))
    source.close()


def test_the_counters_of_all_stages_are_there_before_a_thread_packs_the_flow():
    """A worker's flow that gets an attribute while it is being pickled cannot be."""
    source = QueueInput(tiny_flow())
    assert all("statistics" in vars(stage) for stage in walk(source.flow))


def test_what_workers_made_stays_where_it_is_until_its_step_is_over():
    size = (1 << 14,)

    def flow(count=200):
        fill = MapData(DataFromList([[i] for i in range(count)], shuffle=False), filled)
        return MultiProcessRunner(fill, 8, 2)

    def filled(datapoint):
        return [np.full(size, datapoint[0], np.float32)]

    signature = [tf.TensorSpec(size, tf.float32, "x")]
    source = QueueInput(flow(), queue_size=30)
    source.setup(signature)
    read = tf.function(source.get_input_tensors, autograph=False).get_concrete_function()
    source.start()
    try:
        source.wait(30)
        for number in range(450):  # more than two passes, and many times what is in the queue
            x = source.next().tensors(0)[0] if number % 2 else read()[0]
            assert x.numpy().min() == x.numpy().max() == number % 200
    finally:
        source.close()
    ours = flow(5)
    assert all(QueueInput(ours)._is_ours(x) for (x,) in ours)
    above = MapData(flow(5), lambda dp: dp)  # whose function might keep them
    assert not any(QueueInput(above)._is_ours(x) for (x,) in above)
    inline = MultiProcessRunner(flow(5).ds, 8, 0)
    assert not any(QueueInput(inline)._is_ours(x) for (x,) in inline)


def test_a_queue_is_never_smaller_than_a_step_of_several_towers():
    source = QueueInput(tiny_flow(), queue_size=1)
    source.devices = ("/cpu:0", "/cpu:1")
    source.setup(TinyModel().input_signature)
    source.start()
    assert source.next(2, 2, 1).count == 2
    source.close()
