import threading

import numpy as np
import pytest

from tests.tiny_model import TinyModel, tiny_flow
from towerpack._tensorflow import tf
from towerpack.dataflow import DataFromArrays, MapData
from towerpack.input_source import QueueInput, SignatureError
from towerpack.input_source.signature import as_inputs

SPECS = [tf.TensorSpec([None, 2], tf.float32, "x"), tf.TensorSpec([None], tf.int32, "label")]
GOOD = [np.zeros([3, 2], np.float32), np.zeros([3], np.int32)]


def start(flow, **options):
    source = QueueInput(flow, **options)
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
    before = threading.active_count()
    source = start(tiny_flow(), queue_size=1)
    source.close()
    source.close()
    assert threading.active_count() == before


def test_an_exception_of_the_flow_is_raised_after_what_was_read():
    def fail(datapoint):
        if datapoint[1][0] >= 0:
            raise ZeroDivisionError("broken sample")
        return datapoint

    source = start(MapData(tiny_flow(), fail))
    with pytest.raises(tf.errors.OutOfRangeError):
        source.get_input_tensors()
    with pytest.raises(ZeroDivisionError, match="broken sample"):
        source.raise_failure()
    source.close()


def test_an_empty_flow_is_an_error_and_not_an_endless_loop():
    source = start(MapData(DataFromArrays(np.zeros([3, 2])), lambda dp: None))
    with pytest.raises(tf.errors.OutOfRangeError):
        source.get_input_tensors()
    with pytest.raises(ValueError, match="produced nothing"):
        source.raise_failure()
    source.close()


def test_dicts_go_by_name():
    inputs = as_inputs({"label": GOOD[1], "other": 1, "x": GOOD[0]}, SPECS, "Flow")
    assert inputs[0] is GOOD[0]
    assert inputs[1] is GOOD[1]


@pytest.mark.parametrize(
    ("datapoint", "problem"),
    [
        (GOOD[:1], "expected 2 components, received 1"),
        ([GOOD[0].astype(np.float64), GOOD[1]], "'x' has another dtype"),
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
