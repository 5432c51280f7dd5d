"""Exported models, opened again in plain TensorFlow."""

import numpy as np
import pytest

import towerpack.estimator as learn
from tests.estimator.linear import X, data, few_logs, predicted
from towerpack._tensorflow import tf, v1

TOWNS = np.array(["Ulm", "Bonn"])


@pytest.fixture
def line():
    def model_fn(features, labels, mode):
        y = predicted(features)
        if mode == learn.ModeKeys.PREDICT:
            further = {"halved": {"half": y / 2}}
            return learn.EstimatorSpec(mode, {"y": y}, export_outputs=further)
        loss = tf.reduce_mean(tf.square(y - labels))
        optimizer = v1.train.GradientDescentOptimizer(0.01)
        return learn.EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    return learn.Estimator(model_fn, "run", few_logs()).train(data(5))


def expected(estimator):
    w, b = estimator.get_variable_value("W"), estimator.get_variable_value("b")
    return w * X + b


@pytest.mark.parametrize(
    "request_of",
    [
        {"x": tf.TensorSpec([None], tf.float64)},
        learn.export.build_raw_serving_input_receiver_fn({"x": X[:1]}),
        learn.export.build_raw_serving_input_receiver_fn({"x": tf.TensorSpec([2], tf.float64)}),
    ],
    ids=["specs", "examples", "placeholders"],
)
def test_features_are_the_inputs_of_an_export(line, request_of):
    first, second = (line.export_saved_model("exports", request_of) for _ in range(2))
    assert first < second
    signatures = tf.saved_model.load(first).signatures
    found = signatures["serving_default"](x=tf.constant(X))
    np.testing.assert_allclose(found["y"], expected(line))
    found = signatures["halved"](x=tf.constant(X))
    np.testing.assert_allclose(found["half"], expected(line) / 2)


def test_serialized_examples_are_parsed_in_the_graph():
    fc = learn.feature_column
    columns = [
        fc.numeric_column("age"),
        fc.indicator_column(fc.categorical_column_with_vocabulary_list("town", TOWNS)),
    ]
    model = learn.LinearRegressor(columns, "run", config=few_logs())
    features = {"age": np.array([3.0, 5.0], "float32"), "town": TOWNS}
    model.train(learn.numpy_input_fn(features, np.array([1.0, 2.0]), num_epochs=9))
    parse = {
        "age": tf.io.FixedLenFeature([1], tf.float32),
        "town": tf.io.FixedLenFeature([1], tf.string),
    }
    receive = learn.export.build_parsing_serving_input_receiver_fn(parse)
    path = model.export_saved_model("exports", receive)

    def example(age, town):
        feature = {
            "age": tf.train.Feature(float_list=tf.train.FloatList(value=[age])),
            "town": tf.train.Feature(bytes_list=tf.train.BytesList(value=[town.encode()])),
        }
        return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()

    rows = [example(*row) for row in zip(features["age"], TOWNS, strict=True)]
    serve = tf.saved_model.load(path).signatures["serving_default"]
    found = serve(examples=tf.constant(rows))["predictions"]
    predictions = model.predict(learn.numpy_input_fn(features))
    np.testing.assert_allclose(found, [row["predictions"] for row in predictions], rtol=1e-6)


def test_what_an_export_cannot_take_is_refused(line):
    with pytest.raises(TypeError, match="to return a ServingInputReceiver"):
        line.export_saved_model("exports", lambda: 1)
    with pytest.raises(ValueError, match="call train\\(\\) first"):
        learn.Estimator(lambda features: 1, "other", few_logs())._checkpoint()
