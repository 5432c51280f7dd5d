"""A run with everything that must survive a restart; the same command goes on.

    python exact_run.py DIRECTORY WORKERS

Workers augment, the model drops out, Adam has moments, weights have averages, the learning rate
follows a schedule. Every step's cost goes to `costs` in the directory, to the bit.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from towerpack._tensorflow import tf
from towerpack.callbacks import (
    EMA,
    Callback,
    ClassificationError,
    InferenceRunner,
    MinSaver,
    ModelSaver,
    ScheduledHyperParamSetter,
)
from towerpack.core import logger
from towerpack.dataflow import BatchData, DataFromArrays, MultiProcessMapData
from towerpack.models import Dropout, FullyConnected, ModelDesc
from towerpack.tower.optimizer import Adam
from towerpack.train import SimpleTrainer, TrainConfig, launch_train_with_config

SAMPLES, BATCH, EPOCHS = 64, 8, 5
STEPS = SAMPLES // BATCH * EPOCHS
PAUSE = 0.01  # seconds after each step, so that a kill finds the run at work


class Model(ModelDesc):
    def inputs(self):
        return [
            tf.TensorSpec([None, 12], tf.float32, "x"),
            tf.TensorSpec([None], tf.int32, "label"),
        ]

    def build_graph(self, x, label):
        hidden = FullyConnected("fc0", x, 16, activation=tf.nn.relu)
        hidden = Dropout("drop", hidden, rate=0.4)
        logits = FullyConnected("fc1", hidden, 3)
        wrong = tf.not_equal(tf.argmax(logits, 1, output_type=tf.int32), label)
        tf.cast(wrong, tf.float32, name="incorrect_vector")
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        return tf.reduce_mean(losses, name="cost")

    def optimizer(self):
        return Adam(0.01)


class Costs(Callback):
    """Writes each step's number and cost."""

    def __init__(self, path):
        self.path = path

    def _before_train(self):
        self.file = open(self.path, "a", buffering=1)  # noqa: SIM115 (closed in _after_train)

    def _before_run(self):
        return ["cost"]

    def _after_run(self, values):
        self.cost = float(values[0])

    def _trigger_step(self):
        self.file.write(f"{self.global_step} {self.cost.hex()}\n")
        time.sleep(PAUSE)

    def _after_train(self):
        self.file.close()


def samples(seed):
    x = np.random.default_rng(seed).normal(size=(SAMPLES, 12)).astype(np.float32)
    return x, x[:, :3].argmax(axis=1).astype(np.int32)


def augment(dp, rng):
    x, label = dp
    noisy = x * rng.uniform(0.8, 1.2) + rng.normal(size=x.shape, scale=0.1)
    return [noisy.astype(np.float32), label]


def main(directory: Path, workers: int) -> None:
    tf.config.experimental.enable_op_determinism()
    tf.random.set_seed(5)
    logger.set_logger_dir(directory)
    flow = DataFromArrays(*samples(0), shuffle=True)
    flow = BatchData(MultiProcessMapData(flow, workers, augment), BATCH)
    validation = BatchData(DataFromArrays(*samples(1)), BATCH)
    config = TrainConfig(
        model=Model(),
        dataflow=flow,
        callbacks=[
            Costs(directory / "costs"),
            EMA(0.9),
            InferenceRunner(validation, [ClassificationError()]),
            ScheduledHyperParamSetter("learning_rate", [(0, 0.01), (4, 0.001)], interp="linear"),
            ModelSaver(3, every="3 steps"),
            MinSaver("validation_error"),
        ],
        max_epoch=EPOCHS,
        resume="auto",
    )
    launch_train_with_config(config, SimpleTrainer())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
