"""TensorFlow by hand: the limit of what a framework on top of it can reach.

A traced step with fused optimizer kernels and oneDNN, called with batches straight from the arrays;
M3, where overhead dominates, as a loop of many steps over stacked batches, compiled by XLA.
"""

import os

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np
import tensorflow as tf

from trainers import work
from trainers.serve import versions


class Network:
    """Variables that are made when a layer is first called, in the order of the calls."""

    def __init__(self):
        self.weights, self.statistics = [], []
        self._made = False

    def __call__(self, model, images):
        self._weights, self._statistics = iter(self.weights), iter(self.statistics)
        logits = FORWARD[model](self, images)
        self._made = True
        return logits

    def weight(self, shape, spread):
        if self._made:
            return next(self._weights)
        with tf.init_scope():
            self.weights.append(tf.Variable(tf.random.truncated_normal(shape, stddev=spread)))
        return self.weights[-1]

    def constant(self, shape, value, kind="weights"):
        if self._made:
            return next(self._weights if kind == "weights" else self._statistics)
        with tf.init_scope():
            variable = tf.Variable(tf.fill(shape, float(value)), trainable=kind == "weights")
        getattr(self, kind).append(variable)
        return variable

    def convolve(self, x, filters, stride=1, size=3, bias=True):
        fan_in = size * size * x.shape[-1]
        x = tf.nn.conv2d(
            x, self.weight([size, size, x.shape[-1], filters], (2 / fan_in) ** 0.5), stride, "SAME"
        )
        return tf.nn.bias_add(x, self.constant([filters], 0)) if bias else x

    def connect(self, x, units):
        x = tf.reshape(x, [-1, np.prod(x.shape[1:])])
        weight = self.weight([x.shape[1], units], (2 / x.shape[1]) ** 0.5)
        return tf.nn.bias_add(x @ weight, self.constant([units], 0))

    def normalize(self, x):
        channels = x.shape[-1:]
        scale, offset = self.constant(channels, 1), self.constant(channels, 0)
        mean = self.constant(channels, 0, "statistics")
        variance = self.constant(channels, 1, "statistics")
        x, batch_mean, batch_variance = tf.compat.v1.nn.fused_batch_norm(
            x, scale, offset, epsilon=work.NORM_EPSILON
        )
        for average, value in ((mean, batch_mean), (variance, batch_variance)):
            average.assign_sub((1 - work.NORM_MOMENTUM) * (average - value))
        return tf.nn.relu(x)


def lenet(net, x):
    x = tf.nn.relu(net.convolve(x, work.LENET_FILTERS))
    x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    x = tf.nn.relu(net.convolve(x, work.LENET_FILTERS))
    x = tf.nn.relu(net.convolve(x, work.LENET_FILTERS))
    x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    x = tf.nn.relu(net.convolve(x, work.LENET_FILTERS))
    x = tf.nn.relu(net.connect(x, work.LENET_UNITS))
    return net.connect(tf.nn.dropout(x, work.DROPOUT), work.CLASSES)


def resnet(net, x):
    x = net.convolve(x, work.RESNET_FILTERS[0], bias=False)
    for filters, stride in work.resnet_stages():
        active = net.normalize(x)
        if filters != x.shape[-1]:
            x = net.convolve(active, filters, stride, size=1, bias=False)
        y = net.normalize(net.convolve(active, filters, stride, bias=False))
        x = x + net.convolve(y, filters, bias=False)
    return net.connect(tf.reduce_mean(net.normalize(x), [1, 2]), work.CLASSES)


def dense(net, x):
    return net.connect(tf.nn.relu(net.connect(x, work.DENSE_UNITS)), work.CLASSES)


FORWARD = {"M1": lenet, "M2": resnet, "M3": dense}


class Adam:
    def __init__(self, weights):
        self.slots = [[tf.Variable(tf.zeros_like(w)) for _ in range(2)] for w in weights]
        self.powers = [tf.Variable(0.9), tf.Variable(0.999)]

    def apply(self, gradients, weights):
        for gradient, weight, (m, v) in zip(gradients, weights, self.slots, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=weight.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=self.powers[0],
                beta2_power=self.powers[1],
                lr=work.ADAM_RATE,
                beta1=0.9,
                beta2=0.999,
                epsilon=1e-7,
                grad=gradient,
            )
        for power, beta in zip(self.powers, (0.9, 0.999), strict=True):
            power.assign(power * beta)


class Momentum:
    def __init__(self, weights):
        self.slots = [tf.Variable(tf.zeros_like(w)) for w in weights]

    def apply(self, gradients, weights):
        for gradient, weight, slot in zip(gradients, weights, self.slots, strict=True):
            tf.raw_ops.ResourceApplyMomentum(
                var=weight.handle,
                accum=slot.handle,
                lr=work.MOMENTUM_RATE,
                grad=gradient,
                momentum=work.MOMENTUM,
            )


def make_step(model):
    """A function of a batch that adds one step to the graph being traced; returns its cost."""
    net = Network()
    net(model, tf.zeros([1, *work.TASKS[model].shape]))
    optimizer = (Momentum if model == "M2" else Adam)(net.weights)

    def step(images, labels):
        with tf.GradientTape() as tape:
            logits = net(model, images)
            cost = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            )
        optimizer.apply(tape.gradient(cost, net.weights), net.weights)
        return cost

    return step


def single_step(model):
    task = work.TASKS[model]
    signature = [
        tf.TensorSpec([task.batch, *task.shape], tf.float32),
        tf.TensorSpec([task.batch], tf.int32),
    ]
    return tf.function(make_step(model), autograph=False).get_concrete_function(*signature)


def compiled_steps(model):
    task = work.TASKS[model]
    step = make_step(model)

    @tf.function(
        jit_compile=True,
        autograph=False,
        input_signature=[
            tf.TensorSpec([work.FUSED, task.batch, *task.shape], tf.float32),
            tf.TensorSpec([work.FUSED, task.batch], tf.int32),
        ],
    )
    def steps(images, labels):
        return tf.while_loop(
            lambda done, _: done < work.FUSED,
            lambda done, _: (done + 1, step(images[done], labels[done])),
            (0, 0.0),
        )[1]

    return steps.get_concrete_function()


def batches(model, data, order, fused=1):
    """An epoch of shuffled batches, or of stacks of `fused` batches."""
    task = work.TASKS[model]
    lead = (fused, task.batch) if fused > 1 else (task.batch,)
    images, labels = data
    for rows in order.permutation(task.samples).reshape(-1, fused * task.batch):
        yield (
            tf.constant(images[rows].reshape(*lead, *task.shape)),
            tf.constant(labels[rows].reshape(lead)),
        )


def train(model, turns):
    data, order = work.arrays(model), np.random.default_rng(0)
    fused = work.FUSED if model == "M3" else 1
    run = compiled_steps(model) if fused > 1 else single_step(model)
    way = f"{fused} steps in one call compiled by XLA" if fused > 1 else "a traced step"
    turns.settings = f"{versions('tensorflow-cpu')}, oneDNN, {way}, fused kernels"
    go_on = True
    while go_on:
        for batch in batches(model, data, order, fused):
            cost = run(*batch)
        cost.numpy()
        go_on = turns.done(work.TASKS[model].steps)
