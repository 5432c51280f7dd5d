import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.input_source import PerWorkerInput, SignatureError

NUMBERS = [tf.TensorSpec([None], tf.int64, "n")]


def numbers(worker, workers):
    return tf.data.Dataset.range(12).shard(workers, worker).batch(4, drop_remainder=True)


def test_what_is_known_before_workers_read():
    source = PerWorkerInput(numbers, size=3)
    source.setup(NUMBERS)
    assert source.specs() == [tf.TensorSpec([4], tf.int64, "n")]
    assert source.batch_size() == 4
    assert source.size() == 3
    assert source.state() is None


@pytest.mark.parametrize("kind", ["map", "generator"])
def test_python_in_a_dataset_is_refused(kind):
    def call(worker, workers):
        if kind == "generator":
            return tf.data.Dataset.from_generator(lambda: iter([[1]]), output_signature=NUMBERS[0])
        data = numbers(worker, workers)
        return data.map(lambda n: tf.numpy_function(np.negative, [n], tf.int64))

    with pytest.raises(ValueError, match=r"PerWorkerInput\(call\).*write the data to files"):
        PerWorkerInput(call).setup(NUMBERS)


def test_wrong_data_is_refused():
    with pytest.raises(TypeError, match="expected a function.*a dataset that was made here"):
        PerWorkerInput(tf.data.Dataset.range(3))
    with pytest.raises(TypeError, match="to return a tf.data.Dataset"):
        PerWorkerInput(lambda worker, workers: [worker]).setup(NUMBERS)
    with pytest.raises(SignatureError, match="input 'n' has another dtype"):
        PerWorkerInput(numbers).setup([tf.TensorSpec([None], tf.float32, "n")])
    with pytest.raises(ValueError, match="positive size"):
        PerWorkerInput(numbers, size=0)


def test_another_trainer_is_told_what_to_write():
    source = PerWorkerInput(numbers)
    source.setup(NUMBERS)
    with pytest.raises(RuntimeError, match=r"TFDatasetInput\(dataset_fn\(0, 1\)\)"):
        source.next()
