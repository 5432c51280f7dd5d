"""Input functions of arrays and data frames."""

import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.estimator import numpy_input_fn, pandas_input_fn
from towerpack.estimator.inputs import InputData

X = {"a": np.arange(5), "b": np.arange(10.0).reshape(5, 2)}
Y = np.arange(5) * 10


def test_batches_cross_epochs_and_only_the_last_is_smaller():
    flow = numpy_input_fn(X, Y, 3, num_epochs=2)(mode="eval")
    found = [(features["a"].tolist(), labels.tolist()) for features, labels in flow]
    assert found == [
        ([0, 1, 2], [0, 10, 20]),
        ([3, 4, 0], [30, 40, 0]),
        ([1, 2, 3], [10, 20, 30]),
        ([4], [40]),
    ]
    (first, *_) = numpy_input_fn(X, batch_size=2)()
    np.testing.assert_array_equal(first[0]["b"], X["b"][:2])
    (whole,) = numpy_input_fn(X["b"])()
    np.testing.assert_array_equal(whole[0], X["b"])


def test_samples_are_shuffled_for_training_or_as_asked():
    def order(mode, **options):
        ((_, labels),) = numpy_input_fn(X, Y, 5, **options)(mode=mode)
        return labels.tolist()

    assert order("train") != Y.tolist()
    assert sorted(order("train")) == Y.tolist()
    assert order("infer") == Y.tolist()
    assert order("train", shuffle=False) == Y.tolist()
    assert order("infer", shuffle=True) == order("train")


def test_training_draws_resampled_classes_equally_often():
    labels = np.array(["a"] * 6 + ["b"] * 2)
    make = numpy_input_fn({"x": np.arange(8)}, labels, 4, num_epochs=2, class_weight="resample")
    found = [(features["x"], batch) for features, batch in make(mode="train")]
    x, drawn = (np.concatenate(parts) for parts in zip(*found, strict=True))
    assert np.unique_counts(drawn).counts.tolist() == [12, 12]
    assert np.unique_counts(x).counts.tolist() == [2] * 6 + [6] * 2
    assert x.tolist() != sorted(x.tolist())
    assert sum(len(batch) for _, batch in make(mode="eval")) == 16
    with pytest.raises(ValueError, match="pass class_weight=towerpack.class_weights"):
        numpy_input_fn(X, Y, class_weight="balanced")
    with pytest.raises(ValueError, match="expected one array of labels"):
        numpy_input_fn(X, class_weight="resample")


def test_data_frames():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"town": ["Ulm", "Bonn"], "age": [3, 4]})
    series = pandas.Series([0.5, 1.5])
    ((features, labels),) = pandas_input_fn(frame, series)()
    assert features["town"].tolist() == ["Ulm", "Bonn"]
    assert features["age"].tolist() == [3, 4]
    assert labels.tolist() == [0.5, 1.5]
    ((_, labels),) = pandas_input_fn(frame, frame[["age"]])()
    assert labels["age"].tolist() == [3, 4]
    with pytest.raises(ValueError, match="with the same index"):
        pandas_input_fn(frame, series.iloc[::-1])
    with pytest.raises(TypeError, match="use numpy_input_fn"):
        pandas_input_fn(X)
    with pytest.raises(TypeError, match="expected text in the column 'town', received objects"):
        pandas_input_fn(pandas.DataFrame({"town": ["Ulm", None]}, dtype=object))


def test_labels_are_left_out_for_prediction():
    data = InputData(numpy_input_fn(X, Y, 5), "infer")
    assert [spec.name for spec in data.form.signature] == ["x_a", "x_b"]
    (batch,) = data.batches()
    np.testing.assert_array_equal(batch[1], X["b"])


def test_how_long_data_lasts():
    def given(value):
        return InputData(lambda: value, "train")

    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2)
    assert (given(dataset).steps(1), given(dataset).steps(2)) == (3, 1)
    assert not given(dataset).endless
    assert given(dataset.repeat()).steps(1) is None
    assert given(dataset.repeat()).endless
    assert given((X, Y)).endless
    assert not given(numpy_input_fn(X, Y)()).endless
