"""The next batches are on the devices before the step asks for them."""

import numpy as np
import pytest

from tests.dataflow.parallel.scripts import eventually
from towerpack._tensorflow import tf
from towerpack.dataflow import DataFromList
from towerpack.input_source import FeedInput, QueueInput, StagingInput, flow_input

NUMBERS = [tf.TensorSpec([], tf.int32, "n")]


def numbers():
    return DataFromList([[np.int32(i)] for i in range(1000)], shuffle=False)


def started(source):
    source.setup(NUMBERS)
    source.start()
    return source


@pytest.mark.parametrize("nr_stage", [1, 2])
def test_towers_on_two_devices_get_the_batches_in_order(nr_stage):
    source = StagingInput(QueueInput(numbers()), nr_stage)
    source.devices = ("/cpu:0", "/cpu:1")
    started(source)
    received = []
    for steps in (1, 3, 7, 2, 10):
        found = source.next(2 * steps, 2, 20)
        for tower, stack in enumerate(found.stacks):
            assert stack[0].device.endswith(f"CPU:{tower}")
        received += [int(found.batch(n)[0]) for n in range(found.count)]
        state = source.state()
        assert state["batch"] + state["skip"] == source.delivered == len(received)
    assert received == list(range(len(received)))
    source.close()


def test_the_next_batch_is_on_the_device_before_the_step_asks_for_it():
    source = started(StagingInput(QueueInput(numbers(), queue_size=4), device="/cpu:1"))
    assert int(source.next().batch(0)[0]) == 0
    eventually(lambda: source._coming[0].done(), "the next batch")
    (number,) = source._coming[0].result().batch(0)
    assert int(number) == 1 and number.device.endswith("CPU:1")
    source.close()


def test_line_by_line_as_a_debugger_runs_it():
    source = started(StagingInput(QueueInput(numbers())))
    assert [int(source.get_input_tensors()[0]) for _ in range(5)] == list(range(5))
    source.close()


def test_what_cannot_be_staged():
    with pytest.raises(TypeError, match="received a StagingInput"):
        StagingInput(StagingInput(QueueInput(numbers())))
    with pytest.raises(TypeError, match="received a FeedInput"):
        StagingInput(FeedInput(numbers()))
    with pytest.raises(TypeError, match="QueueInput"):
        StagingInput(numbers())
    with pytest.raises(ValueError, match="nr_stage"):
        StagingInput(QueueInput(numbers()), nr_stage=0)


def test_P3_positions_are_kept_for_what_is_staged_and_not_handed_out(monkeypatch):
    monkeypatch.setattr(flow_input, "MARK_SECONDS", 0)
    source = started(StagingInput(QueueInput(numbers(), queue_size=2), nr_stage=3))
    for number in range(20):
        state = source.state()
        assert (state["batch"], state["skip"]) == (number, 0)
        assert int(source.next().batch(0)[0]) == number
        eventually(lambda: all(f.done() for f in source._coming), "staged batches")
    source.close()
