#!/usr/bin/env python
"""A network for digits whose settings are a dataclass, for `towerpack train` and `towerpack sweep`.

towerpack train examples/settings/digits.py --help
towerpack train examples/settings/digits.py units=[64,32] optimizer.lr=3e-3
towerpack train examples/settings/digits.py --settings examples/settings/large.toml
towerpack train examples/settings/digits.py --resume train_log/digits max_epoch=10
towerpack runs train_log
"""

from dataclasses import dataclass, field
from typing import Literal

# Before TensorFlow, which then loads with the faster convolutions.
from towerpack import (
    BatchData,
    ClassificationError,
    Dropout,
    FullyConnected,
    InferenceRunner,
    ModelDesc,
    ModelSaver,
    ScalarStats,
    TrainConfig,
    dataset,
    optimizer,
    set_random_seed,
)

# isort: split
import tensorflow as tf


@dataclass
class Optimizer:
    name: Literal["adam", "momentum"] = "adam"
    lr: float = 1e-3


@dataclass
class Settings:
    units: tuple[int, ...] = (64,)
    dropout: float = 0.2
    batch: int = 64
    max_epoch: int = 5
    seed: int = 0
    optimizer: Optimizer = field(default_factory=Optimizer)


class Digits(ModelDesc):
    def __init__(self, settings):
        self.settings = settings

    def inputs(self):
        return [
            tf.TensorSpec([None, 28, 28], tf.float32, "image"),
            tf.TensorSpec([None], tf.int32, "label"),
        ]

    def build_graph(self, image, label):
        x = image
        for layer, units in enumerate(self.settings.units):
            x = FullyConnected(f"fc{layer}", x, units, activation=tf.nn.relu)
        logits = FullyConnected("logits", Dropout("dropout", x, rate=self.settings.dropout), 10)
        wrong = tf.argmax(logits, axis=1, output_type=tf.int32) != label
        tf.cast(wrong, tf.float32, name="incorrect_vector")
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        return tf.reduce_mean(loss, name="cost")

    def optimizer(self):
        wanted = self.settings.optimizer
        kind = {"adam": optimizer.Adam, "momentum": optimizer.Momentum}[wanted.name]
        return kind(wanted.lr)


def get_config(settings: Settings):
    set_random_seed(settings.seed)
    validation = BatchData(dataset.MnistSample("test"), 500, remainder=True)
    return TrainConfig(
        model=Digits(settings),
        dataflow=BatchData(dataset.MnistSample("train"), settings.batch),
        callbacks=[
            ModelSaver(),
            InferenceRunner(validation, [ScalarStats("cost"), ClassificationError()]),
        ],
        max_epoch=settings.max_epoch,
    )
