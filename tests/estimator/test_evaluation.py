"""Evaluation over uneven batches, against numpy and scikit-learn's formulas on all samples."""

import dataclasses

import numpy as np
import pytest

from tests.estimator.linear import X, Y, data, few_logs, predicted
from towerpack._tensorflow import tf, v1
from towerpack.estimator import Estimator, EstimatorSpec, numpy_input_fn

kinds = tf.keras.metrics


def model_fn(features, labels, mode):
    y = predicted(features)
    loss = tf.reduce_mean(tf.square(y - labels))
    above, below = labels > -4, y > -4  # predictions change by training
    error = kinds.MeanAbsoluteError(name="keras_error")
    error.update_state(labels[:, None], y[:, None])  # otherwise Keras takes a batch for a sample
    recall = kinds.Recall()
    recall.update_state(above, below)
    metrics = {
        "error": error,
        "recall": recall,
        "mse": v1.metrics.mean_squared_error(labels, y),
        "accuracy": v1.metrics.accuracy(above, below),
        "absolute": tf.abs(y - labels),
        "batch_mean": tf.reduce_mean(labels),
    }
    counted = v1.get_variable("counted", [], trainable=False, initializer=v1.zeros_initializer())
    counted.assign_add(1.0)  # runs in training only
    train_op = v1.train.GradientDescentOptimizer(0.01).minimize(loss)
    return EstimatorSpec(mode, y, loss, train_op, metrics)


def test_every_sample_counts_once_in_every_kind_of_metric():
    estimator = Estimator(model_fn, "run", few_logs())
    estimator.train(data(4, num_epochs=None), steps=5)
    w, b = estimator.get_variable_value("W"), estimator.get_variable_value("b")
    y = w * X + b
    above, below = Y > -4, y > -4
    expected = {
        "loss": np.mean((y - Y) ** 2),
        "error": np.mean(np.abs(y - Y)),
        "recall": np.sum(above & below) / np.sum(above),
        "mse": np.mean((y - Y) ** 2),
        "accuracy": np.mean(above == below),
        "absolute": np.mean(np.abs(y - Y)),
        "batch_mean": np.mean(Y),
        "global_step": 5,
    }
    for size in (3, 10):  # the second run counts from zero again
        assert estimator.evaluate(data(size)) == pytest.approx(expected, rel=1e-6)
    names = estimator.get_variable_names()
    assert names == ["W", "b", "counted", "global_step"]  # no counters of metrics
    assert estimator.get_variable_value("counted") == 5


def test_steps_limit_the_batches_and_an_older_checkpoint_may_be_chosen():
    estimator = Estimator(model_fn, "run", few_logs())
    estimator.train(data(4), steps=1)
    first = estimator.latest_checkpoint()
    estimator.train(data(4), steps=1)
    result = estimator.evaluate(data(2), steps=3, checkpoint_path=first)
    assert result["global_step"] == 1
    assert result["batch_mean"] == pytest.approx(np.mean(Y[:6]))


def test_a_metric_without_an_update_and_no_data_are_refused():
    def without_update(features, labels, mode):
        spec = model_fn(features, labels, mode)
        return dataclasses.replace(spec, eval_metric_ops={"error": kinds.MeanAbsoluteError()})

    estimator = Estimator(without_update, "other", few_logs()).train(data(4), steps=1)
    with pytest.raises(ValueError, match="the Keras metric 'error' counts nothing"):
        estimator.evaluate(data(4))

    def without_loss(features, labels, mode):
        return EstimatorSpec(mode, predicted(features))

    estimator = Estimator(without_loss, "run", few_logs())
    with pytest.raises(ValueError, match="EstimatorSpec\\(loss=...\\) in mode 'train'"):
        estimator.train(data(4), steps=1)
    empty = numpy_input_fn({"x": np.zeros(0)}, np.zeros(0))
    with pytest.raises(ValueError, match="an input_fn with data, received an empty flow"):
        estimator.evaluate(empty)
