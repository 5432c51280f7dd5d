"""A linear model of one feature, as a model function of TensorFlow 1, and its data."""

import itertools

import numpy as np

from towerpack._tensorflow import v1
from towerpack.estimator import EstimatorSpec, RunConfig, numpy_input_fn

X = np.arange(1.0, 11.0)
Y = 1 - X + np.sin(X)


def data(batch_size=3, **options):
    return numpy_input_fn({"x": X}, Y, batch_size, **options)


def predicted(features):
    w = v1.get_variable("W", [1], v1.float64, v1.ones_initializer())
    b = v1.get_variable("b", [1], v1.float64, v1.zeros_initializer())
    return w * features["x"] + b


def with_optimizer(make_optimizer):
    """The model function, trained by `minimize` of this optimizer."""

    def model_fn(features, labels, mode):
        y = predicted(features)
        loss = v1.reduce_mean(v1.square(y - labels))
        optimizer = make_optimizer()
        train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
        return EstimatorSpec(mode, y, loss, train_op)

    return model_fn


def few_logs(**options):
    return RunConfig(tf_random_seed=1, **options)


def batches(count, size=3, epochs=100):
    """The batches of `data(size, num_epochs=epochs, shuffle=False)`."""
    x, y = np.tile(X, epochs), np.tile(Y, epochs)
    return [(x[i : i + size], y[i : i + size]) for i in range(0, count * size, size)]


def joined(lists):
    return list(itertools.chain(*lists))
