"""JAX: a jitted step, and for M3 a jitted scan of many steps over stacked batches, if it is faster.

A scan of convolutions is not tried: on a CPU, XLA runs them in a loop on one thread, for minutes.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from trainers import work
from trainers.serve import fastest, versions


class Network:
    """Weights that are made when a layer is first called, and read in the same order later."""

    def __init__(self, weights=None, statistics=None, key=None):
        self.weights, self.statistics = weights or [], statistics or []
        self.making, self.key = weights is None, key
        self.new_statistics = []
        self._weight = self._statistic = 0

    def weight(self, make):
        if self.making:
            self.weights.append(make())
        self._weight += 1
        return self.weights[self._weight - 1]

    def draw(self, shape, fan_in):
        self.key, key = jax.random.split(self.key)
        return jax.random.normal(key, shape) * (2 / fan_in) ** 0.5

    def convolve(self, x, filters, stride=1, size=3, bias=True):
        shape = (size, size, x.shape[-1], filters)
        weight = self.weight(lambda: self.draw(shape, size * size * x.shape[-1]))
        x = lax.conv_general_dilated(
            x, weight, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return x + self.weight(lambda: jnp.zeros(filters)) if bias else x

    def connect(self, x, units):
        x = x.reshape(x.shape[0], -1)
        weight = self.weight(lambda: self.draw((x.shape[1], units), x.shape[1]))
        return x @ weight + self.weight(lambda: jnp.zeros(units))

    def normalize(self, x):
        channels = x.shape[-1]
        scale = self.weight(lambda: jnp.ones(channels))
        offset = self.weight(lambda: jnp.zeros(channels))
        if self.making:
            self.statistics.append((jnp.zeros(channels), jnp.ones(channels)))
        averages = self.statistics[self._statistic]
        self._statistic += 1
        mean, variance = jnp.mean(x, (0, 1, 2)), jnp.var(x, (0, 1, 2))
        self.new_statistics.append(
            tuple(
                work.NORM_MOMENTUM * average + (1 - work.NORM_MOMENTUM) * lax.stop_gradient(value)
                for average, value in zip(averages, (mean, variance), strict=True)
            )
        )
        x = (x - mean) * (lax.rsqrt(variance + work.NORM_EPSILON) * scale) + offset
        return jax.nn.relu(x)


def pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def lenet(net, x):
    x = pool(jax.nn.relu(net.convolve(x, work.LENET_FILTERS)))
    x = jax.nn.relu(net.convolve(x, work.LENET_FILTERS))
    x = pool(jax.nn.relu(net.convolve(x, work.LENET_FILTERS)))
    x = jax.nn.relu(net.convolve(x, work.LENET_FILTERS))
    x = jax.nn.relu(net.connect(x, work.LENET_UNITS))
    kept = jax.random.bernoulli(net.key, 1 - work.DROPOUT, x.shape)
    return net.connect(jnp.where(kept, x / (1 - work.DROPOUT), 0), work.CLASSES)


def resnet(net, x):
    x = net.convolve(x, work.RESNET_FILTERS[0], bias=False)
    for filters, stride in work.resnet_stages():
        active = net.normalize(x)
        if filters != x.shape[-1]:
            x = net.convolve(active, filters, stride, size=1, bias=False)
        y = net.normalize(net.convolve(active, filters, stride, bias=False))
        x = x + net.convolve(y, filters, bias=False)
    return net.connect(jnp.mean(net.normalize(x), (1, 2)), work.CLASSES)


def dense(net, x):
    return net.connect(jax.nn.relu(net.connect(x, work.DENSE_UNITS)), work.CLASSES)


FORWARD = {"M1": lenet, "M2": resnet, "M3": dense}


def adam(gradients, weights, slots, count):
    def update(gradient, weight, slot):
        m = 0.9 * slot[0] + 0.1 * gradient
        v = 0.999 * slot[1] + 0.001 * gradient**2
        rate = work.ADAM_RATE * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        return weight - rate * m / (jnp.sqrt(v) + 1e-7), (m, v)

    return zip(*map(update, gradients, weights, slots), strict=True)


def momentum(gradients, weights, slots, count):
    def update(gradient, weight, slot):
        velocity = work.MOMENTUM * slot[0] + gradient
        return weight - work.MOMENTUM_RATE * velocity, (velocity, slot[1])

    return zip(*map(update, gradients, weights, slots), strict=True)


def make(model):
    """The first state of a training run, and the function from a state and a batch to the next."""
    forward, task = FORWARD[model], work.TASKS[model]
    net = Network(key=jax.random.key(0))
    forward(net, jnp.zeros((2, *task.shape)))
    slots = [(jnp.zeros_like(w), jnp.zeros_like(w)) for w in net.weights]
    state = (net.weights, net.statistics, slots, jnp.zeros((), jnp.int32))
    optimize = momentum if model == "M2" else adam

    def step(state, batch):
        weights, statistics, slots, count = state
        images, labels = batch

        def cost(weights):
            key = jax.random.fold_in(jax.random.key(0), count)
            net = Network(weights, statistics, key)
            scores = jax.nn.log_softmax(forward(net, images))
            picked = jnp.take_along_axis(scores, labels[:, None], 1)
            return -jnp.mean(picked), net.new_statistics

        (value, statistics), gradients = jax.value_and_grad(cost, has_aux=True)(weights)
        weights, slots = optimize(gradients, weights, slots, count + 1)
        return (list(weights), statistics, list(slots), count + 1), value

    return state, step


def train(model, turns):
    task = work.TASKS[model]
    images, labels = work.arrays(model)
    order = np.random.default_rng(0)
    state, step = make(model)
    single = jax.jit(step, donate_argnums=0)
    scan = jax.jit(lambda state, batches: lax.scan(step, state, batches), donate_argnums=0)

    def epoch(run, steps):
        def run_epoch():
            nonlocal state
            lead = (steps, task.batch) if steps > 1 else (task.batch,)
            for rows in order.permutation(task.samples).reshape(-1, steps * task.batch):
                batch = images[rows].reshape(*lead, *task.shape), labels[rows].reshape(lead)
                state, cost = run(state, batch)
            cost.block_until_ready()

        return run_epoch

    epochs = {"one by one": epoch(single, 1)}
    if model == "M3":
        epochs[f"scan of {work.FUSED}"] = epoch(scan, work.FUSED)
    best = fastest(epochs)
    turns.settings = f"{versions('jax')}, {best}"
    while True:
        epochs[best]()
        if not turns.done(task.steps):
            break
