import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.dataflow import DataFromList
from towerpack.input_source import BatchQueueInput

FLOW = DataFromList([[np.int32(i)] for i in range(7)], shuffle=False)
NUMBERS = [tf.TensorSpec([None], tf.int32, "n")]


def test_batches_are_full_across_passes_and_have_static_shapes():
    source = BatchQueueInput(FLOW, 3)
    source.setup(NUMBERS)
    source.start()
    read = tf.function(source.get_input_tensors, autograph=False).get_concrete_function()
    assert read.structured_outputs[0].shape == [3]
    assert source.size() == 2
    assert source.specs()[0].shape == [3]
    received = [read()[0].numpy().tolist() for _ in range(2)]
    received += [source.next().batch(0)[0].tolist() for _ in range(2)]
    assert received == [[0, 1, 2], [3, 4, 5], [6, 0, 1], [2, 3, 4]]
    assert "from datapoint 2 of pass 1" in source.position(3)
    source.close()


def test_a_queue_smaller_than_a_batch_would_never_give_one():
    source = BatchQueueInput(FLOW, 100, queue_size=1)
    source.setup(NUMBERS)
    source.start()
    assert source.wait() == 1
    source.close()


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (tf.TensorSpec([None, None], tf.int32, "n"), "known shape"),
        (tf.TensorSpec([], tf.int32, "n"), "known shape"),
        (tf.TensorSpec(None, tf.int32, "n"), "known shape"),
        (tf.TensorSpec([4], tf.int32, "n"), "batches of 3"),
    ],
)
def test_shapes_that_do_not_work_are_refused(spec, problem):
    with pytest.raises(ValueError, match=problem):
        BatchQueueInput(FLOW, 3).setup([spec])
