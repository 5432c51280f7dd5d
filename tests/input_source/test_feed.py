import numpy as np
import pytest

from tests.tiny_model import TinyModel, tiny_flow
from towerpack._tensorflow import tf
from towerpack.input_source import EndOfData, FeedInput


def start(source):
    source.setup(TinyModel().input_signature)
    source.start()
    return tf.function(source.get_input_tensors, autograph=False).get_concrete_function()


def test_a_finite_feed_ends_with_the_flow_and_can_begin_again():
    flow = tiny_flow()
    source = FeedInput(flow, infinite=False)
    read = start(source)
    for _ in range(2):
        for _ in range(len(flow)):
            assert source.wait() == 1
            read()
        with pytest.raises(EndOfData, match="after 6 batches"):
            source.wait()
        with pytest.raises(tf.errors.OutOfRangeError):
            read()
        source.raise_failure()
        source.reset_state()
    source.close()


def test_wait_reads_ahead_only_what_is_there_and_asked_for():
    source = FeedInput(tiny_flow(), infinite=False)
    read = start(source)
    assert source.wait(2) == 2
    assert source.wait(5, seconds=0) == 2
    assert source.wait(100) == 6
    assert source.state()["skip"] + source.state()["batch"] == 0
    received = [read()[0].numpy() for _ in range(6)]
    np.testing.assert_array_equal(received, [x for x, _ in tiny_flow().iterate(0)])
    source.close()


def test_without_wait_the_step_reads_by_itself():
    source = FeedInput(tiny_flow())
    read = start(source)
    received = [read()[0].numpy() for _ in range(12)]
    expected = [x for epoch in (0, 1) for x, _ in tiny_flow().iterate(epoch)]
    np.testing.assert_array_equal(received, expected)
    source.close()


def test_a_step_before_start_says_so():
    source = FeedInput(tiny_flow())
    source.setup(TinyModel().input_signature)
    with pytest.raises(RuntimeError, match="expected start"):
        source.wait()
    with pytest.raises((RuntimeError, tf.errors.UnknownError), match="expected start"):
        tf.function(source.get_input_tensors, autograph=False)()
