#!/usr/bin/env python
"""Two ways to write a trainer of one's own, on the digits in the package.

    python examples/trainers/own_step.py

`RecursiveLeastSquares` has no tower, no optimizer and no gradient: its `run_step` is plain NumPy,
and it still gets the loop, the callbacks, the monitors and the progress bar. Each step is a call.

`Distillation` says what is minimized (`objectives`) and leaves the rest to `TowerTrainer`: its two
costs train two networks in one traced step, and many such steps run in one call. The GAN trainers
are written in this way.
"""

import numpy as np

# Before TensorFlow, which then loads with the faster convolutions.
from towerpack import (
    BatchData,
    FullyConnected,
    Objective,
    QueueInput,
    TowerTrainer,
    Trainer,
    add_moving_summary,
    dataset,
    logger,
    optimizer,
)

# isort: split
import tensorflow as tf

STEPS, EPOCHS = 40, 2


class RecursiveLeastSquares(Trainer):
    """Fits a linear classifier batch by batch, exactly."""

    def __init__(self, flow):
        super().__init__()
        self.batches = iter(flow)
        self.gram, self.moment = np.eye(784) * 10, np.zeros((784, 10))

    def run_step(self):
        x, label = next(self.batches)
        x = x.reshape(len(x), -1)
        self.gram += x.T @ x
        self.moment += x.T @ np.eye(10)[label]
        if self.local_step == self.steps_per_epoch - 1:
            weights = np.linalg.solve(self.gram, self.moment)
            error = np.mean(np.argmax(x @ weights, axis=1) != label)
            self.monitors.put_scalar("train_error", error)


class Distillation(TowerTrainer):
    """A large network learns from labels, a small one from the large one."""

    persistent_tape = True  # two costs take gradients of one tower

    def __init__(self, flow):
        super().__init__()
        signature = [
            tf.TensorSpec([None, 28, 28], tf.float32, "image"),
            tf.TensorSpec([None], tf.int32, "label"),
        ]
        self.setup_towers(signature, QueueInput(flow), self.tower)

    def make_optimizers(self):
        self.optimizers = [optimizer.Adam(1e-3), optimizer.Adam(1e-3)]

    def optimizers_of(self, index):
        return self.optimizers

    def tower(self, image, label):
        hidden = FullyConnected("large0", image, 128, activation=tf.nn.relu)
        large, small = FullyConnected("large1", hidden, 10), FullyConnected("small", image, 10)
        taught = tf.nn.softmax(tf.stop_gradient(large) / 2)
        costs = [
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=large),
            tf.nn.softmax_cross_entropy_with_logits(labels=taught, logits=small),
        ]
        names = ("large_cost", "small_cost")
        costs = [tf.reduce_mean(c, name=name) for c, name in zip(costs, names, strict=True)]
        add_moving_summary(*costs)
        return costs

    def objectives(self, tower):
        weights = tower.context.store.trainable()
        return [
            Objective(cost, [v for name, v in weights.items() if name.startswith(scope)], opt)
            for cost, scope, opt in zip(
                tower.output, ("large", "small"), self.optimizers, strict=True
            )
        ]


if __name__ == "__main__":
    logger.set_logger_dir("train_log/own_step", "d")
    for kind in (RecursiveLeastSquares, Distillation):
        with kind(BatchData(dataset.MnistSample("train"), 50)) as trainer:
            trainer.train_with_defaults(steps_per_epoch=STEPS, max_epoch=EPOCHS)
