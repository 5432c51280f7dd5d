"""Estimators with a model, against Keras and scikit-learn on the same data."""

import numpy as np
import pytest
from sklearn import metrics

from tests.estimator.linear import few_logs
from towerpack import SyncMultiGPUTrainerReplicated, class_weights
from towerpack._tensorflow import tf, v1
from towerpack.estimator import (
    DNNClassifier,
    DNNLinearCombinedClassifier,
    DNNLinearCombinedRegressor,
    DNNRegressor,
    LinearClassifier,
    LinearRegressor,
    numpy_input_fn,
)
from towerpack.estimator import feature_column as fc

rng = np.random.default_rng(0)
SIZE = 200
X = {
    "a": rng.normal(size=SIZE).astype("float32"),
    "town": rng.choice(["u", "v", "w"], SIZE),
    "weight": rng.uniform(0.5, 2, SIZE).astype("float32"),
}
POSITIVE = (X["a"] > 0.3) ^ (X["town"] == "v")
Y = 2 * X["a"] + (X["town"] == "v")
A, TOWN = fc.numeric_column("a"), fc.categorical_column_with_vocabulary_list("town", list("uvw"))
DENSE = [A, fc.indicator_column(TOWN)]


def data(labels, size=32, **options):
    return numpy_input_fn(X, labels, size, **options)


def train(estimator, labels, steps=60):
    return estimator.train(data(labels, num_epochs=None), steps=steps)


def test_metrics_and_predictions_of_two_classes():
    # Few thresholds of an AUC coincide with chances of 200 samples, so it is close to the area.
    layers = {"dropout": 0.1, "batch_norm": True, "weight_column": "weight"}
    model = DNNClassifier([16], DENSE, "run", optimizer="Adam", config=few_logs(), **layers)
    train(model, POSITIVE.astype(int))
    found = model.evaluate(data(POSITIVE.astype(int), 33))
    rows = list(model.predict(data(None, 33)))
    chances = np.array([row["probabilities"][1] for row in rows])
    classes = np.array([row["class_ids"][0] for row in rows])
    weight = X["weight"]
    share = np.average(POSITIVE, weights=weight)
    losses = -np.log(np.where(POSITIVE, chances, 1 - chances))
    expected = {
        "accuracy": metrics.accuracy_score(POSITIVE, classes, sample_weight=weight),
        "accuracy_baseline": max(share, 1 - share),
        "average_loss": np.average(losses, weights=weight),
        "label/mean": share,
        "loss": np.mean(losses * weight),
        "precision": metrics.precision_score(POSITIVE, classes, sample_weight=weight),
        "prediction/mean": np.average(chances, weights=weight),
        "recall": metrics.recall_score(POSITIVE, classes, sample_weight=weight),
        "global_step": 60,
    }
    areas = {name: found.pop(name) for name in ("auc", "auc_precision_recall")}
    assert found == pytest.approx(expected, rel=1e-4)
    assert found["accuracy"] > 0.85
    area = metrics.roc_auc_score(POSITIVE, chances, sample_weight=weight)
    assert areas["auc"] == pytest.approx(area, abs=0.01)
    area = metrics.average_precision_score(POSITIVE, chances, sample_weight=weight)
    assert areas["auc_precision_recall"] == pytest.approx(area, abs=0.02)
    np.testing.assert_allclose([row["logistic"][0] for row in rows], chances, rtol=1e-5)
    assert {row["classes"][0] for row in rows} == {b"0", b"1"}


def test_classes_by_name():
    kinds = ["low", "middle", "high"]
    labels = np.array(kinds)[np.digitize(X["a"], [-0.5, 0.5])]
    columns = [fc.bucketized_column(A, [-0.5, 0.5])]
    model = LinearClassifier(
        columns, "run", 3, label_vocabulary=kinds, optimizer="SGD", config=few_logs()
    )
    found = train(model, labels, 30).evaluate(data(labels, 33))
    assert sorted(found) == ["accuracy", "average_loss", "global_step", "loss"]
    assert found["accuracy"] == 1
    (row, *_) = model.predict(data(None))
    assert row["classes"][0].decode() == labels[0]
    assert row["probabilities"].shape == row["logits"].shape == (3,)
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected labels:"):
        model.evaluate(data(np.where(labels == "low", "lwo", labels)))


def test_a_linear_model_equals_keras_with_class_weights():
    labels, weights = POSITIVE.astype(int), {0: 0.5, 1: 3.0}
    model = LinearClassifier(
        [A, TOWN], "run", config=few_logs(), class_weight=weights,
        optimizer=lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    )  # fmt: skip
    model.train(data(labels, num_epochs=2, shuffle=False))
    theirs = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(1, "sigmoid")])
    theirs.layers[0].set_weights([np.zeros([4, 1]), np.zeros([1])])
    theirs.compile(tf.keras.optimizers.SGD(0.1, 0.9), "binary_crossentropy")
    columns = [X["a"], *(X["town"] == town for town in "uvw")]
    dense = np.stack(columns, axis=1).astype("float32")
    twice, labels = np.concatenate([dense, dense]), np.concatenate([labels, labels])
    batches = tf.data.Dataset.from_tensor_slices((twice, labels[:, None])).batch(32)
    theirs.fit(batches, verbose=0, shuffle=False, class_weight=weights)
    kernel, bias = theirs.get_weights()
    value = model.get_variable_value
    np.testing.assert_allclose(value("linear/linear_model/a/weights"), kernel[:1], atol=1e-5)
    np.testing.assert_allclose(value("linear/linear_model/town/weights"), kernel[1:], atol=1e-5)
    np.testing.assert_allclose(value("linear/linear_model/bias_weights"), bias, atol=1e-5)


@pytest.mark.parametrize("towers", [1, 2])
def test_the_two_together_on_one_device_and_two(towers):
    trainer = {"train_distribute": lambda: SyncMultiGPUTrainerReplicated(2)}
    config = few_logs(**(trainer if towers > 1 else {}))
    model = DNNLinearCombinedRegressor(
        "run", [A, TOWN], "Adam", DENSE, tf.keras.optimizers.Adam(0.01), [8], config=config
    )
    found = train(model, Y, 60).evaluate(data(Y, 33))
    assert found["label/mean"] == pytest.approx(np.mean(Y), rel=1e-5)
    assert found["loss"] == pytest.approx(found["average_loss"])
    assert found["loss"] < np.var(Y) / 2
    names = model.get_variable_names()
    assert {"linear/linear_model/a/weights", "dnn/hiddenlayer_0/kernel", "dnn/logits/bias"} <= set(
        names
    )


def test_regression():
    x = np.stack([X["a"], X["town"] == "v"], axis=1).astype("float32")
    w = np.array([[2.0, 1.0], [1.0, -1.0]], "float32")
    options = {"label_dimension": 2, "optimizer": tf.keras.optimizers.Adam(0.1)}
    model = LinearRegressor([fc.numeric_column("x", 2)], "linear", config=few_logs(), **options)
    input_fn = numpy_input_fn({"x": x}, x @ w, 50, num_epochs=60)
    model.train(input_fn)
    assert model.evaluate(input_fn, steps=4)["loss"] < 1e-3
    np.testing.assert_allclose(
        model.get_variable_value("linear/linear_model/x/weights"), w, atol=0.1
    )
    model = DNNRegressor([16, 8], DENSE, "dnn", optimizer="Adam", config=few_logs())
    found = train(model, Y, 100).evaluate(data(Y))
    assert found["average_loss"] < np.var(Y) / 2
    (row, *_) = model.predict(data(None))
    assert row["predictions"].shape == (1,)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: LinearClassifier([]), "at least one feature column"),
        (lambda: LinearClassifier([A], n_classes=1), "n_classes of at least 2"),
        (lambda: LinearClassifier([A], label_vocabulary=["a"]), "a label_vocabulary of 2 classes"),
        (lambda: LinearClassifier([A], class_weight="balanced"), "class_weights\\(labels, "),
        (lambda: LinearClassifier([A], class_weight={0: 1, 2: 1}), "2"),
        (lambda: DNNLinearCombinedClassifier(), "linear_feature_columns or dnn_feature_columns"),
        (
            lambda: LinearRegressor([A], "run", optimizer="Adamm").train(data(Y), steps=1),
            "an optimizer or a name, 'Adam'",
        ),
        (
            lambda: LinearClassifier([A], "run").train(data(X["town"]), steps=1),
            "label_vocabulary= for labels of text",
        ),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(make, words):
    with pytest.raises((TypeError, ValueError, KeyError), match=words):
        make()


def test_balanced_weights_are_computed_from_the_labels():
    weights = class_weights(POSITIVE.astype(int), "balanced")
    assert LinearClassifier([A], class_weight=weights).model_dir
