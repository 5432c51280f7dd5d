"""Train ops of model functions: their results, against plain loops in TensorFlow."""

import numpy as np
import pytest

from tests.estimator.linear import batches, data, few_logs, predicted, with_optimizer
from towerpack import SyncMultiGPUTrainer, SyncMultiGPUTrainerReplicated
from towerpack._tensorflow import tf, v1
from towerpack.estimator import Estimator, EstimatorSpec, LoggingTensorHook

train = v1.train


def decayed():
    rate = train.exponential_decay(0.02, train.get_global_step(), 2, 0.5)
    return train.MomentumOptimizer(rate, 0.9)


def trained(model_fn, steps=6, size=3, **config):
    """Every other step is traced with the loss, and so calls the model function by itself."""
    estimator = Estimator(model_fn, "run", few_logs(**config))
    hooks = [LoggingTensorHook(["loss"], every_n_iter=2)]
    estimator.train(data(size, num_epochs=100, shuffle=False), hooks, steps=steps)
    return estimator


def by_hand(make_optimizer, steps=6, size=3):
    """W and b after the steps of an optimizer, in eager TensorFlow."""
    w, b = tf.Variable([1.0], dtype=tf.float64), tf.Variable([0.0], dtype=tf.float64)
    optimizer = make_optimizer()
    for x, y in batches(steps, size):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(w * x + b - y))
        optimizer.apply_gradients(zip(tape.gradient(loss, [w, b]), [w, b], strict=True))
    return w.numpy(), b.numpy()


@pytest.mark.parametrize(
    "make",
    [
        lambda: train.GradientDescentOptimizer(0.01),
        lambda: train.MomentumOptimizer(0.01, 0.9),
        lambda: train.AdamOptimizer(0.1),
    ],
    ids=["SGD", "Momentum", "Adam"],
)
def test_minimize_equals_a_plain_loop(make):
    estimator = trained(with_optimizer(make))
    w, b = by_hand(make)
    np.testing.assert_allclose(estimator.get_variable_value("W"), w, rtol=1e-12)
    np.testing.assert_allclose(estimator.get_variable_value("b"), b, rtol=1e-12)
    assert estimator.get_variable_value("W").dtype == np.float64
    assert estimator.get_variable_value("global_step") == 6


def test_a_learning_rate_that_is_a_tensor_of_the_step_and_slots_across_calls():
    estimator = trained(with_optimizer(decayed), steps=4)
    assert estimator.get_variable_names() == ["W", "W/Momentum", "b", "b/Momentum", "global_step"]
    # The second call finds the slots of the first, and its data begins anew.
    estimator.train(data(3, num_epochs=1, shuffle=False))

    w, b = tf.Variable([1.0], dtype=tf.float64), tf.Variable([0.0], dtype=tf.float64)
    rate = tf.Variable(0.02)
    optimizer = train.MomentumOptimizer(rate, 0.9)
    for step, (x, y) in enumerate([*batches(4), *batches(3), (np.array([10.0]), data_y(9))]):
        rate.assign(0.02 * 0.5 ** (step / 2))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(w * x + b - y))
        optimizer.apply_gradients(zip(tape.gradient(loss, [w, b]), [w, b], strict=True))
    assert estimator.get_variable_value("global_step") == 8
    np.testing.assert_allclose(estimator.get_variable_value("W"), w.numpy(), rtol=1e-6)
    np.testing.assert_allclose(estimator.get_variable_value("b"), b.numpy(), rtol=1e-6)


def data_y(place):
    ((_, y),) = batches(1, 10)
    return y[place : place + 1]


@pytest.mark.parametrize("kind", [SyncMultiGPUTrainer, SyncMultiGPUTrainerReplicated])
def test_a_train_op_on_two_devices_equals_one_with_twice_the_batch(kind):
    trainer = lambda: kind(2)  # noqa: E731
    two = trained(with_optimizer(decayed), 4, 2, train_distribute=trainer)
    w, b = two.get_variable_value("W"), two.get_variable_value("b")
    one = Estimator(with_optimizer(decayed), "one", few_logs())
    one.train(data(4, num_epochs=100, shuffle=False), steps=4)
    np.testing.assert_allclose(w, one.get_variable_value("W"), rtol=1e-7)
    np.testing.assert_allclose(b, one.get_variable_value("b"), rtol=1e-7)


def test_gradients_may_be_changed_and_applied_by_two_optimizers():
    def model_fn(features, labels, mode):
        y = predicted(features)
        loss = v1.reduce_mean(v1.square(y - labels))
        w, b = v1.trainable_variables()
        first, second = train.GradientDescentOptimizer(0.01), train.AdamOptimizer(0.1)
        clipped = [(tf.clip_by_value(g, -1, 1), v) for g, v in first.compute_gradients(loss, [w])]
        train_op = tf.group(first.apply_gradients(clipped), second.minimize(loss, var_list=[b]))
        return EstimatorSpec(mode, y, loss, train_op)

    estimator = trained(model_fn, steps=1)
    # The first gradient of W is far above 1; a first step of Adam is as long as its rate.
    np.testing.assert_allclose(estimator.get_variable_value("W"), [0.99], rtol=1e-8)
    np.testing.assert_allclose(abs(estimator.get_variable_value("b")), [0.1], rtol=1e-6)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: tf.keras.optimizers.SGD(0.01, momentum=0.9),
        lambda: train.MomentumOptimizer(0.01, 0.9),
    ],
    ids=["Keras", "TensorFlow 1"],
)
@pytest.mark.parametrize("called", [False, True], ids=["object", "function"])
def test_an_optimizer_in_place_of_a_train_op(optimizer, called):
    def model_fn(features, labels, mode):
        y = predicted(features)
        loss = v1.reduce_mean(v1.square(y - labels))
        return EstimatorSpec(mode, y, loss, optimizer=optimizer if called else optimizer())

    estimator = trained(model_fn)
    w, b = by_hand(lambda: train.MomentumOptimizer(0.01, 0.9))
    np.testing.assert_allclose(estimator.get_variable_value("W"), w, rtol=1e-6)
    np.testing.assert_allclose(estimator.get_variable_value("b"), b, rtol=1e-6)
    estimator.train(data(3), steps=1)  # loads what the first call has saved


def test_a_train_op_without_an_optimizer_is_refused():
    def model_fn(features, labels, mode):
        y = predicted(features)
        train_op = v1.assign_add(v1.train.get_global_step(), 1)
        return EstimatorSpec(mode, y, v1.reduce_mean(y), train_op)

    with pytest.raises(ValueError, match="EstimatorSpec\\(optimizer=...\\) instead"):
        trained(model_fn)


def test_two_updates_of_one_variable_are_refused():
    def model_fn(features, labels, mode):
        loss = v1.reduce_mean(predicted(features))
        optimizer = train.GradientDescentOptimizer(0.01)
        train_op = tf.group(optimizer.minimize(loss), optimizer.minimize(2 * loss))
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    with pytest.raises(ValueError, match="each variable to be changed by one optimizer"):
        trained(model_fn)


def test_tensorflow_itself_is_as_before():
    before = train.Optimizer.apply_gradients, train.Optimizer.compute_gradients
    trained(with_optimizer(decayed), 1)
    assert before == (train.Optimizer.apply_gradients, train.Optimizer.compute_gradients)
