#!/usr/bin/env python
"""A linear regression written for the Estimator of TensorFlow 1, with only its imports changed.

    python examples/estimator/linear_regression.py

A thousand steps find the line through the data: W = -1, b = 1.
"""

import numpy as np

# Was tf.contrib.learn. Before TensorFlow, as all of towerpack.
import towerpack.estimator as learn

# isort: split
import tensorflow.compat.v1 as tf


def model(features, labels, mode):
    # Build a linear model and predict values
    W = tf.get_variable("W", [1], dtype=tf.float64)
    b = tf.get_variable("b", [1], dtype=tf.float64)
    y = W * features["x"] + b
    # Loss sub-graph
    loss = tf.reduce_sum(tf.square(y - labels))
    # Training sub-graph
    global_step = tf.train.get_global_step()
    optimizer = tf.train.GradientDescentOptimizer(0.01)
    train = tf.group(optimizer.minimize(loss), tf.assign_add(global_step, 1))
    # ModelFnOps connects subgraphs we built to the
    # appropriate functionality.
    return learn.ModelFnOps(mode=mode, predictions=y, loss=loss, train_op=train)


estimator = learn.Estimator(model_fn=model)

# define our input data set
x = np.array([1.0, 2.0, 3.0, 4.0])
y = np.array([0.0, -1.0, -2.0, -3.0])
input_fn = learn.io.numpy_input_fn({"x": x}, y, 4, num_epochs=1000)

# train
estimator.fit(input_fn=input_fn, steps=1000)
# evaluate our model
print(estimator.evaluate(input_fn=input_fn, steps=10))
(w,), (b,) = map(estimator.get_variable_value, ["W", "b"])
print(f"W = {w:.4f}, b = {b:.4f}")
