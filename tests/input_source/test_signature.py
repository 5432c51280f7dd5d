"""What an input accepts: numpy's default dtypes are converted where nothing goes wrong."""

import logging

import numpy as np
import pytest

from tests.tiny_model import BATCH, TinyModel, tiny_arrays
from towerpack._tensorflow import tf
from towerpack.callbacks import InferenceRunner, ScalarStats
from towerpack.dataflow import BatchData, DataFromArrays, DataFromList, MapDataComponent
from towerpack.input_source import FeedInput, QueueInput, SignatureError, TFDatasetInput
from towerpack.input_source.signature import InputCheck, as_inputs
from towerpack.train import SimpleTrainer, TrainConfig, launch_train_with_config

SPECS = [tf.TensorSpec([None, 2], tf.float32, "x"), tf.TensorSpec([None], tf.int32, "label")]
X, LABEL = np.array([[0.5, 1 / 3]]), np.array([7])  # in numpy's default dtypes


def test_default_dtypes_are_converted():
    x, label = as_inputs([X, LABEL], SPECS, "Flow")
    assert (x.dtype, label.dtype) == (np.float32, np.int32)
    np.testing.assert_array_equal(x, X.astype(np.float32))
    np.testing.assert_array_equal(label, [7])


@pytest.mark.parametrize(
    ("received", "declared", "line"),
    [
        (np.array([1]), tf.float32, 'lambda x: x.astype("float32"), 0)'),
        (np.array([1.0]), tf.int32, 'lambda x: x.astype("int32"), 0)'),
        (np.array([1.0]), tf.float16, 'lambda x: x.astype("float16"), 0)'),
        (np.array([1], np.uint8), tf.float32, 'lambda x: x.astype("float32"), 0)'),
        (np.array([1], np.float32), tf.float64, 'lambda x: x.astype("float64"), 0)'),
        (np.array([True]), tf.int32, 'lambda x: x.astype("int32"), 0)'),
    ],
)
def test_other_dtypes_are_refused_with_the_line_to_write(received, declared, line):
    specs = [tf.TensorSpec([None], declared, "x")]
    with pytest.raises(SignatureError, match="'x' has another dtype") as caught:
        as_inputs([received], specs, "Flow")
    assert line in str(caught.value)
    ds = MapDataComponent(DataFromList([[received]]), lambda x: x.astype(declared.name), 0)
    assert as_inputs(next(iter(ds)), specs, "Flow")[0].dtype == declared.as_numpy_dtype
    with pytest.raises(SignatureError, match=r"'x'\)$"):
        as_inputs({"x": received}, specs, "Flow")


@pytest.mark.parametrize(
    ("received", "declared"),
    [
        (np.array([1, 2**31]), tf.int32),
        (np.array([-1, 3]), tf.uint8),
        (np.array([0, 300]), tf.uint8),
        (np.array([0, 1e300]), tf.float32),
    ],
)
def test_values_that_do_not_fit_are_refused_and_not_wrapped_around(received, declared):
    with pytest.raises(SignatureError, match=f"do not fit {declared.name}") as caught:
        as_inputs([received], [tf.TensorSpec([None], declared, "x")], "Flow")
    assert f"Declare {received.dtype} in inputs()" in str(caught.value)
    assert "astype" not in str(caught.value)


def test_infinite_and_empty_arrays_are_converted():
    specs = [tf.TensorSpec([None], tf.float32, "x"), tf.TensorSpec([None], tf.int32, "label")]
    x, label = as_inputs([np.array([np.inf, np.nan]), np.zeros([0], np.int64)], specs, "Flow")
    np.testing.assert_array_equal(x, np.array([np.inf, np.nan], np.float32))
    assert label.dtype == np.int32


def test_conversions_are_logged_once_for_each_input(caplog):
    check = InputCheck(SPECS, "Flow")
    with caplog.at_level(logging.INFO):
        for rows in (1, 2, 3, 1):
            check([np.repeat(X, rows, 0), np.repeat(LABEL, rows)])
        check([X.astype(np.float32), LABEL.astype(np.int32)])
        check([X, LABEL])
    messages = [record.getMessage() for record in caplog.records]
    # Others may log too, such as the thread of an earlier test.
    assert [message for message in messages if message.startswith("Flow gives")] == [
        f"Flow gives the input {name!r} as {old}; it is converted to {new}, which the model expects"
        for name, old, new in [("x", "float64", "float32"), ("label", "int64", "int32")]
    ]


def test_stacked_batches_are_converted_too():
    check = InputCheck(SPECS, "Flow")
    check([X, LABEL])
    x, label = check.stack([np.stack([X, X]), np.stack([LABEL, LABEL])])
    assert (x.dtype, label.dtype) == (np.float32, np.int32)
    # One by one, so that those before the wrong one are trained on.
    assert check.stack([np.stack([X, X]), np.stack([LABEL, LABEL + 2**40])]) is None


@pytest.mark.parametrize("source", [QueueInput, FeedInput])
@pytest.mark.parametrize("options", [{"jit": True}, {"steps_per_call": 1}])
def test_training_on_default_dtypes_equals_training_on_converted_arrays(source, options):
    x, label = tiny_arrays()

    def trained(*arrays):
        tf.keras.utils.set_random_seed(3)
        flow = BatchData(DataFromArrays(*arrays), BATCH)
        trainer = SimpleTrainer(**options)
        launch_train_with_config(
            TrainConfig(
                model=TinyModel(),
                data=source(flow),
                callbacks=[InferenceRunner(flow, ScalarStats("cost"))],
                steps_per_epoch=50,
                max_epoch=2,
                monitors=[],
            ),
            trainer,
        )
        return trainer.store["fc/W"].numpy()

    expected = trained(x, label)
    np.testing.assert_array_equal(trained(x.astype(np.float64), label.astype(np.int64)), expected)


def test_a_dataset_of_another_dtype_is_refused_with_the_line_to_write():
    dataset = tf.data.Dataset.from_tensor_slices((X, LABEL)).batch(1)
    with pytest.raises(SignatureError) as caught:
        TFDatasetInput(dataset).setup(SPECS)
    assert "dataset.map(lambda x, label: (tf.cast(x, tf.float32), label))" in str(caught.value)
