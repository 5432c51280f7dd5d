"""A program that trains, and may kill itself: python -m tests.estimator.victim DIRECTORY [STEP].

It kills itself at that step. If it reaches the end, it writes all variables to
DIRECTORY/result.npz.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from towerpack import Callback, set_random_seed
from towerpack._tensorflow import v1
from towerpack.estimator import Estimator, EstimatorSpec, RunConfig, numpy_input_fn
from towerpack.models import Dropout

rng = np.random.default_rng(0)
X = rng.normal(size=(70, 4)).astype("float32")
Y = X.sum(axis=1)


def model_fn(features, labels, mode):
    x = Dropout("drop", dense("first", features["x"], 8), rate=0.3)
    y = dense("second", x, 1)[:, 0]
    loss = v1.reduce_mean(v1.square(y - labels))
    rate = v1.train.exponential_decay(0.05, v1.train.get_global_step(), 10, 0.9)
    train_op = v1.train.AdamOptimizer(rate).minimize(loss)
    return EstimatorSpec(mode, y, loss, train_op)


def dense(name, x, units):
    with v1.variable_scope(name):
        kernel = v1.get_variable("kernel", [x.shape[-1], units])
        bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
    return x @ kernel + bias


class Killer(Callback):
    """Kills the process at a step, once there is a checkpoint."""

    def __init__(self, step, directory):
        self.step, self.checkpoint = step, Path(directory, "checkpoint")

    def _trigger_step(self):
        if self.global_step == self.step:
            while not self.checkpoint.exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)


def main(directory, step="0"):
    set_random_seed(1)
    config = RunConfig(save_checkpoints_steps=4, log_step_count_steps=10)
    estimator = Estimator(model_fn, directory, config)
    killer = [Killer(int(step), directory)]
    for target in (15, 30):
        # 9 batches in an epoch, of which the last is smaller.
        input_fn = numpy_input_fn({"x": X}, Y, 8, num_epochs=None)
        estimator.train(input_fn, killer, max_steps=target)
    values = {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}
    np.savez(Path(directory, "result.npz"), **values)


if __name__ == "__main__":
    main(*sys.argv[1:])
