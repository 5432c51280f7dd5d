"""Building small towers in the tests of this room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.tower import TowerContext, TowerFunc, VariableStore


def build(func: Callable, *inputs: Any, is_training=True, store=None):
    """Runs a tower function once in a trace; its output as arrays, and its variables."""
    store = store or VariableStore()
    specs = [tf.TensorSpec([None, *x.shape[1:]], x.dtype, f"x{i}") for i, x in enumerate(inputs)]

    @tf.function(input_signature=specs, autograph=False)
    def run(*tensors):
        with TowerContext("", is_training=is_training, store=store):
            return TowerFunc(func, specs)(*tensors).output

    return tf.nest.map_structure(lambda t: t.numpy(), run(*inputs)), store


def gradients(func: Callable, x: Any, weight: Any, store, is_training=True):
    """The output, and the gradients of sum(output * weight): of the input and by variable name."""

    @tf.function(autograph=False)
    def run(x):
        with TowerContext("", is_training=is_training, store=store), tf.GradientTape() as tape:
            tape.watch(x)
            output = func(x)
            cost = tf.reduce_sum(tf.cast(output, tf.float32) * weight)
        return output, tape.gradient(cost, [x, store.trainable()])

    output, (dx, by_name) = run(tf.constant(x))
    return output.numpy(), dx, {name: np.asarray(g) for name, g in by_name.items()}
