import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.dataflow import DataFromList
from towerpack.input_source import FeedInput, QueueInput, StagingInput, flow_input

NUMBERS = [tf.TensorSpec([], tf.int32, "n")]


def numbers():
    return DataFromList([[np.int32(i)] for i in range(1000)], shuffle=False)


@pytest.mark.parametrize("nr_stage", [1, 2])
def test_towers_on_two_devices_get_the_batches_in_order(nr_stage):
    queue = QueueInput(numbers())
    source = StagingInput(queue, nr_stage)
    source.setup(NUMBERS)
    tf.function(source.get_input_tensors, autograph=False).get_concrete_function()  # never run

    def step(i, rows):
        towers = []
        for device in ("/cpu:0", "/cpu:1"):
            with tf.device(device):
                towers.append(source.get_input_tensors()[0])
        return i + 1, rows.write(i, tf.stack(towers))

    @tf.function(autograph=False)
    def loop(count):
        rows = tf.TensorArray(tf.int32, size=count, element_shape=[2])
        return tf.while_loop(lambda i, _: i < count, step, (0, rows), parallel_iterations=1)[
            1
        ].stack()

    run = loop.get_concrete_function(tf.TensorSpec([], tf.int32))
    source.start()
    taken, received = 0, []
    for steps in (1, 3, 7, 2, 10):
        assert source.wait(2 * steps, taken) == 2 * steps
        received += run(tf.constant(steps)).numpy().ravel().tolist()
        taken += 2 * steps
        state = source.state(taken)
        assert state["batch"] + state["skip"] == taken
        assert queue.held == 2 * nr_stage
    assert received == list(range(taken))
    source.close()


def test_the_next_batch_is_on_the_device_before_the_step_asks_for_it():
    queue = QueueInput(numbers(), queue_size=4)
    source = StagingInput(queue, device="/cpu:1")
    source.setup(NUMBERS)
    read = tf.function(source.get_input_tensors, autograph=False).get_concrete_function()
    source.start()
    source.wait(1, 0)
    (number,) = read()
    assert number == 0
    source.close()


def test_a_step_without_wait_is_an_error_and_does_not_hang():
    source = StagingInput(QueueInput(numbers()))
    source.setup(NUMBERS)
    read = tf.function(source.get_input_tensors, autograph=False).get_concrete_function()
    source.start()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected wait\(\) before the step"):
        read()
    source.close()


def test_line_by_line_as_a_debugger_runs_it():
    source = StagingInput(QueueInput(numbers()))
    source.setup(NUMBERS)
    source.start()
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


def test_P3_positions_are_kept_for_what_is_staged_and_not_taken(monkeypatch):
    monkeypatch.setattr(flow_input, "MARK_SECONDS", 0)
    queue = QueueInput(numbers(), queue_size=2)
    source = StagingInput(queue, nr_stage=3)
    source.setup(NUMBERS)
    read = tf.function(source.get_input_tensors, autograph=False).get_concrete_function()
    source.start()
    for taken in range(20):
        source.wait(1, taken)
        queue.wait(2, taken + queue.held)  # the thread has gone on, and dropped old marks
        state = source.state(taken)
        assert (state["batch"], state["skip"]) == (taken, 0)
        read()
    source.close()
