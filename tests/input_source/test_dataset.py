import threading
import time

import numpy as np
import pytest

from tests.dataflow.parallel.scripts import eventually
from towerpack._tensorflow import tf
from towerpack.dataflow import DataFromList, MapData
from towerpack.input_source import EndOfData, SignatureError, TFDatasetInput, dataflow_to_dataset

NUMBERS = [tf.TensorSpec([], tf.int64, "n")]


def start(source):
    source.setup(NUMBERS)
    source.start()
    return tf.function(source.get_input_tensors, autograph=False).get_concrete_function()


def test_a_dataset_of_unknown_size_ends():
    source = TFDatasetInput(tf.data.Dataset.range(9).filter(lambda n: n % 3 == 0))
    read = start(source)
    assert source.size() is None
    assert int(read()[0]) == 0
    assert source.next(5, 1, 5).count == 1, "where the end may be near, step by step"
    assert int(read()[0]) == 6
    with pytest.raises(EndOfData, match="after 3 batches"):
        source.next()
    with pytest.raises(tf.errors.OutOfRangeError):
        read()
    source.close()


def test_the_wait_is_measured_and_stays_after_close():
    def slow(n):
        time.sleep(0.05)
        return n

    dataset = tf.data.Dataset.range(9).map(lambda n: tf.numpy_function(slow, [n], tf.int64))
    source = TFDatasetInput(dataset)
    read = start(source)
    assert source.waited == 0
    read()
    assert source.waited >= 0.05
    source.close()
    assert source.waited >= 0.05


def counting(ended):
    """Numbers from 0, of a generator that tells when TensorFlow has let go of it."""

    def numbers():
        try:
            yield from range(1000)
        finally:
            ended.append(True)

    spec = tf.TensorSpec([], tf.int64)
    return tf.data.Dataset.from_generator(numbers, output_signature=spec).prefetch(2)


def test_a_new_beginning_and_the_end_free_the_iterator_before():
    ended = []
    source = TFDatasetInput(counting(ended))
    read = start(source)
    assert [int(read()[0]) for _ in range(3)] == [0, 1, 2]
    assert not ended
    source.reset_state()
    eventually(lambda: len(ended) == 1, "the end of the first iterator")
    assert [int(read()[0]) for _ in range(3)] == [0, 1, 2], "the graph has found the new one"
    source.close()
    eventually(lambda: len(ended) == 2, "the end of the second")


def test_an_iterator_is_freed_in_a_thread_of_its_own():
    """TensorFlow may take a minute for it, where datasets tune themselves."""
    freed_by = []

    class Watched:
        def __init__(self, iterator):
            self.iterator = iterator

        def __del__(self):
            freed_by.append(threading.current_thread().name)

    source = TFDatasetInput(tf.data.Dataset.range(5))
    start(source)
    source.input._iterator = Watched(source.input._iterator)
    source.reset_state()
    eventually(lambda: freed_by, "the end of the iterator")
    assert freed_by == ["towerpack-free-iterator"]
    assert int(source.next().batch(0)[0]) == 0
    source.close()


def test_batches_are_stacked_only_where_shapes_are_known():
    for dataset, count in [
        (tf.data.Dataset.range(9).batch(3, drop_remainder=True), 4),
        (tf.data.Dataset.range(9).batch(3), 1),
    ]:
        source = TFDatasetInput(dataset)
        source.setup([tf.TensorSpec([None], tf.int64, "n")])
        assert source.specs()[0].shape == [3 if count == 4 else None]
        source.start()
        found = source.next(4, 1, 4)
        assert (found.count, found.batch(0)[0].shape) == (count, (3,))
        source.close()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: tf.data.Dataset.range(3, output_type=tf.int32), "'n' has another dtype"),
        (lambda: tf.data.Dataset.range(3).batch(2), "'n' has another shape"),
        (
            lambda: tf.data.Dataset.range(3).map(lambda n: (n, n)),
            "expected 1 components, received 2",
        ),
        (lambda: tf.data.Dataset.range(3).map(lambda n: {"m": n}), r"\['n'\] are missing"),
    ],
)
def test_B2_a_misfit_is_refused_before_anything_is_read(make, problem):
    with pytest.raises(SignatureError, match=problem) as caught:
        TFDatasetInput(make()).setup(NUMBERS)
    assert "the model expects   n: int64 ()" in str(caught.value)
    assert "gives" in str(caught.value)


def test_what_is_no_dataset_and_what_is_empty():
    with pytest.raises(TypeError, match="expected a tf.data.Dataset or a DataFlow"):
        TFDatasetInput([1, 2])
    with pytest.raises(ValueError, match="empty"):
        TFDatasetInput(tf.data.Dataset.range(0))


def test_a_flow_as_a_dataset_goes_on_with_the_next_epoch():
    flow = DataFromList([[i] for i in range(20)], shuffle=True)
    passes = TFDatasetInput.dataflow_to_dataset(flow, [tf.int32]).repeat(2)
    expected = [i for epoch in (0, 1) for (i,) in flow.iterate(epoch)]
    assert [int(i) for (i,) in passes] == expected


def test_a_flow_of_dicts_as_a_dataset():
    flow = MapData(DataFromList([[1], [2]], shuffle=False), lambda dp: {"a": dp[0], "b": 0})
    dataset = dataflow_to_dataset(flow, {"a": tf.TensorSpec([], tf.int32)})
    assert [int(element["a"]) for element in dataset] == [1, 2]


def test_a_failing_flow_as_a_dataset_is_quoted():
    flow = MapData(DataFromList([[np.int32(1)]]), lambda dp: dp[0] / "broken")
    with pytest.raises(tf.errors.InvalidArgumentError, match="TypeError"):
        list(dataflow_to_dataset(flow, [tf.int32]))
