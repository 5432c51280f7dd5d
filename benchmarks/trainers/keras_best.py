"""Keras with the best settings known: oneDNN, many steps in one execution, XLA where it wins."""

import os

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"

from trainers import keras_fit, work
from trainers.serve import fastest, versions


def train(model, turns):
    task = work.TASKS[model]
    images, labels = work.arrays(model)
    many = min(work.FUSED, task.steps)
    ways = {
        f"steps_per_execution={per}, jit_compile={jit}": keras_fit.compiled(
            model, steps_per_execution=per, jit_compile=jit
        )
        for per in (1, many)
        for jit in (False, True)
        if not (jit and model == "M2")  # XLA's convolutions: a minute to see that they lose
    }

    def epoch(network):
        return lambda: network.fit(images, labels, task.batch, verbose=0)

    best = fastest({way: epoch(network) for way, network in ways.items()})
    turns.settings = f"{versions('keras', 'tensorflow-cpu')}, oneDNN, {best}"
    keras_fit.fit(ways[best], model, turns)
