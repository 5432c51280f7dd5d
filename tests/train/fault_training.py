"""The training of `fault_run`, with every kind of randomness, and with places where it may hang."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

import towerpack
from towerpack import (
    BatchData,
    DataFromArrays,
    Dropout,
    FullyConnected,
    MapData,
    ModelDesc,
    ModelSaver,
    MultiProcessMapData,
    TrainConfig,
    launch_train_with_config,
    logger,
)
from towerpack._tensorflow import tf
from towerpack.callbacks import Callback
from towerpack.core.cluster import this_cluster
from towerpack.optimizer import Adam
from towerpack.train.distributed import DistributedTrainerReplicated


class Random(ModelDesc):
    """A model with dropout, whose steps draw random numbers."""

    def inputs(self):
        return [tf.TensorSpec([None, 4], tf.float32, "x"), tf.TensorSpec([None], tf.int32, "y")]

    def build_graph(self, x, y):
        hidden = Dropout(FullyConnected("fc", x, 16, activation=tf.nn.relu), rate=0.3)
        logits = FullyConnected("out", hidden, 3)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        return tf.reduce_mean(losses, name="cost")

    def optimizer(self):
        return Adam(0.01)


class Losses(Callback):
    """Writes the loss of each step, at once."""

    def __init__(self, attempt, pause, holds):
        self.attempt, self.pause, self.holds = attempt, pause, holds

    def _before_train(self):
        self.file = os.open("losses", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _before_run(self):
        return ["cost"]

    def _after_run(self, values):
        (loss,) = values
        line = f"{self.attempt} {self.global_step} {float(loss).hex()}\n"
        os.write(self.file, line.encode())
        time.sleep(self.pause)
        while self.global_step in self.holds and not Path(f"go-{self.global_step}").exists():
            time.sleep(0.01)


class Hang(Callback):
    """Sleeps after a step."""

    chief_only = False

    def __init__(self, start, step):
        self.start, self.step = start, step

    def _before_train(self):
        self.start.end()

    def _trigger_step(self):
        if self.global_step == self.step:
            sleep_for_ever()


def sleep_for_ever():
    """Sleeps, while the threads of TensorFlow continue; the next attempt does not."""
    Path("hangs").touch()
    time.sleep(10**6)


class Noisy:
    """Adds noise to a datapoint; sleeps before the one after number `last`."""

    def __init__(self, last):
        self.last, self.count = last, 0

    def __call__(self, datapoint, rng):
        self.count += 1
        if self.last and self.count > self.last:
            sleep_for_ever()
        return [datapoint[0] + rng.normal(size=4).astype("f"), datapoint[1]]


def train(options, start):
    cluster = this_cluster()
    attempt = cluster.attempt if cluster else 0
    logger.set_logger_dir(options["directory"], options["action"])
    if options["seed"] is not None:
        towerpack.set_random_seed(options["seed"])
    x = np.random.default_rng(0).normal(size=(230, 4)).astype(np.float32)
    flow = DataFromArrays(x, x[:, :3].argmax(1).astype(np.int32), shuffle=True)
    hanging, step, place = options["hang"] or (None, 0, "")
    hangs = cluster and cluster.rank == hanging and not Path("hangs").exists()
    noisy = Noisy(step * 8 if hangs and place == "flow" else 0)
    workers = options["workers"]
    flow = MultiProcessMapData(flow, workers, noisy) if workers else MapData(flow, noisy)
    callbacks = [Losses(attempt, options["pause"], options["holds"])]
    if options["save"]:
        callbacks.append(ModelSaver(every=options["save"]))
    if options["hang"]:
        callbacks.append(Hang(start, step if hangs and place == "callback" else 0))
    trainer = DistributedTrainerReplicated(options["towers"], jit=False)
    config = TrainConfig(
        model=Random(),
        dataflow=BatchData(flow, 8),
        callbacks=callbacks,
        steps_per_epoch=options["epoch"],
        max_epoch=options["steps"] // options["epoch"],
        resume=options["resume"],
    )
    launch_train_with_config(config, trainer)
    weights = {name: v.numpy() for name, v in trainer.store.saved().items()}
    np.savez(f"weights-{trainer.ranks.rank}.npz", **weights)
