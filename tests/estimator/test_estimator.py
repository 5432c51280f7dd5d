"""Estimator: the calls of one model share a directory."""

from pathlib import Path

import numpy as np
import pytest

import towerpack.estimator as learn
from tests.estimator.linear import X, Y, data, few_logs, joined, predicted, with_optimizer
from towerpack import Callback
from towerpack._tensorflow import tf, v1

sgd = with_optimizer(lambda: v1.train.GradientDescentOptimizer(0.01))


class Batches(Callback):
    """Collects the first feature of every batch."""

    def __init__(self, name="x_x"):
        self.name, self.seen = name, []

    def _before_run(self):
        return [self.name]

    def _after_run(self, values):
        self.seen.append(values[0].tolist())


def test_the_program_of_tensorflow_1_finds_the_line():
    # As it was, but for its imports.
    def model(features, labels, mode):
        W = v1.get_variable("W", [1], dtype=v1.float64)
        b = v1.get_variable("b", [1], dtype=v1.float64)
        y = W * features["x"] + b
        loss = v1.reduce_sum(v1.square(y - labels))
        global_step = v1.train.get_global_step()
        optimizer = v1.train.GradientDescentOptimizer(0.01)
        train = v1.group(optimizer.minimize(loss), v1.assign_add(global_step, 1))
        return learn.ModelFnOps(mode=mode, predictions=y, loss=loss, train_op=train)

    estimator = learn.Estimator(model_fn=model, config=few_logs())
    x = np.array([1.0, 2.0, 3.0, 4.0])
    y = np.array([0.0, -1.0, -2.0, -3.0])
    input_fn = learn.io.numpy_input_fn({"x": x}, y, 4, num_epochs=1000)
    estimator.fit(input_fn=input_fn, steps=1000)
    result = estimator.evaluate(input_fn=input_fn, steps=10)
    assert result["global_step"] == 1000
    assert result["loss"] < 1e-9
    np.testing.assert_allclose(estimator.get_variable_value("W"), [-1], atol=1e-4)
    np.testing.assert_allclose(estimator.get_variable_value("b"), [1], atol=1e-4)
    with pytest.raises(ValueError, match="None") as caught:  # it computes a loss in every mode
        estimator.predict(learn.io.numpy_input_fn({"x": x}))
    assert "labels is None in mode 'infer'" in caught.value.__notes__[0]


def test_no_batch_is_lost_or_doubled_and_the_end_of_the_data_ends_training():
    estimator = learn.Estimator(sgd, "run", few_logs(log_step_count_steps=3))
    assert estimator.latest_checkpoint() is None
    seen = Batches()
    estimator.train(data(3, num_epochs=2, shuffle=False), [seen])  # 20 samples
    assert joined(seen.seen) == [*X, *X]
    assert [len(batch) for batch in seen.seen] == [3] * 6 + [2]
    assert estimator.get_variable_value("global_step") == 7
    again = Batches()
    estimator.train(data(5, shuffle=False), [again], max_steps=8)
    assert again.seen == [X[:5].tolist()]  # the data begins anew
    third = Batches()
    estimator.train(data(5, shuffle=False), [third], max_steps=8)  # nothing is left to do
    assert third.seen == []
    estimator.train(data(5), [third], steps=1)
    assert estimator.latest_checkpoint().endswith("model-9")


def test_each_call_shuffles_in_its_own_order():
    orders = []
    for name in ("one", "two"):
        estimator = learn.Estimator(sgd, name, few_logs())
        for _ in range(2):
            seen = Batches()
            estimator.train(data(5), [seen])
            orders.append(joined(seen.seen))
    assert orders[0] == orders[2]
    assert orders[1] == orders[3]
    assert orders[0] != orders[1]
    assert all(sorted(order) == X.tolist() for order in orders)


def test_a_dataset_and_tensors_as_input():
    def dataset():
        return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(4)

    estimator = learn.Estimator(sgd, "run", few_logs())
    seen = Batches()
    estimator.train(dataset, [seen])
    assert joined(seen.seen) == X.tolist()
    estimator.train(lambda: dataset().repeat(), [seen := Batches()], steps=4)
    assert [len(batch) for batch in seen.seen] == [4, 4, 2, 4]
    of_unknown_size = dataset().filter(lambda features, labels: True)
    estimator.train(lambda: of_unknown_size, [seen := Batches()])
    assert joined(seen.seen) == X.tolist()
    expected = estimator.evaluate(dataset)
    assert estimator.evaluate(data(4)) == pytest.approx(expected)

    def tensors():
        return {"x": tf.constant(X)}, tf.constant(Y)

    assert estimator.evaluate(tensors) == pytest.approx(expected)
    estimator.train(tensors, steps=2)
    assert estimator.get_variable_value("global_step") == 12
    with pytest.raises(ValueError, match="this input never ends"):
        estimator.train(tensors)


def test_params_config_and_mode_are_passed_to_those_who_take_them():
    modes = []

    def input_fn(params, config, mode):
        modes.append(mode)
        return data(params["size"])()

    def model_fn(features, labels, mode, params, config):
        assert config.model_dir == "run"
        y = predicted(features)
        if mode == learn.ModeKeys.PREDICT:
            assert labels is None
            return learn.EstimatorSpec(mode, {"y": y, "x": features["x"]})
        loss = tf.reduce_mean(tf.square(y - labels))
        optimizer = v1.train.GradientDescentOptimizer(params["rate"])
        return learn.EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    params = {"size": 2, "rate": 0.0}
    estimator = learn.Estimator(model_fn, "run", few_logs(), params)
    estimator.train(input_fn, steps=1)
    estimator.evaluate(input_fn, steps=1)
    rows = list(estimator.predict(input_fn))
    assert [row["x"] for row in rows] == X.tolist()
    assert [row["y"] for row in rows] == X.tolist()  # W is 1, and b is 0
    assert modes == ["train", "eval", "infer"]
    (batch, *_) = estimator.predict(input_fn, "y", yield_single_examples=False)
    assert list(batch) == ["y"]
    np.testing.assert_array_equal(batch["y"], X[:2])
    with pytest.raises(KeyError, match="no prediction is named 'z'"):
        estimator.predict(input_fn, ["z"])


def test_the_weights_of_another_model_start_a_new_one():
    old = learn.Estimator(sgd, "old", few_logs()).train(data(5), steps=5)

    def model_fn(features, labels, mode):
        with v1.variable_scope("new"):
            y = predicted(features)
        loss = tf.reduce_mean(tf.square(y - labels))
        optimizer = v1.train.GradientDescentOptimizer(0.0)
        return learn.EstimatorSpec(mode, y, loss, optimizer.minimize(loss))

    def settings(pattern, names):
        return learn.WarmStartSettings("old", pattern, names)

    new = learn.Estimator(
        model_fn, "new", few_logs(), warm_start_from=settings("new/W", {"new/W": "W"})
    )
    new.train(data(5), steps=1)
    assert new.get_variable_value("new/W") == old.get_variable_value("W")
    assert new.get_variable_value("new/b") == 0
    assert new.get_variable_value("global_step") == 1
    wrong = learn.Estimator(model_fn, "wrong", few_logs(), warm_start_from="old")
    with pytest.raises(KeyError, match="no variable 'new/W' for 'new/W'"):
        wrong.train(data(5), steps=1)


def test_checkpoints_of_others_are_not_overwritten():
    Path("run").mkdir()
    v1.train.Saver({"W": tf.Variable([1.0])}).save(None, "run/model.ckpt", global_step=7)
    with pytest.raises(ValueError, match="pass warm_start_from= for their weights"):
        learn.Estimator(sgd, "run", few_logs()).train(data(5), steps=1)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda e: e.train(data(), steps=1, max_steps=2), ValueError, "received both"),
        (lambda e: e.train(data(), steps=0), ValueError, "expected a positive steps"),
        (lambda e: e.train(data()()), TypeError, "expected a function as input_fn"),
        (lambda e: e.evaluate(data(), 1, [1]), ValueError, "expected no hooks"),
        (lambda e: e.evaluate(data()), ValueError, "call train\\(\\) first"),
        (lambda e: e.train(lambda: [X, X, Y], steps=1), ValueError, "several features into a dict"),
        (lambda e: learn.Estimator(sgd, "a", few_logs(model_dir="b")), ValueError, "one model_dir"),
        (lambda e: learn.Estimator(None, "a"), TypeError, "expected a function as model_fn"),
    ],
)
def test_wrong_calls_are_refused(call, error, words):
    with pytest.raises(error, match=words):
        call(learn.Estimator(sgd, "run", few_logs()))
