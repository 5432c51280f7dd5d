"""A run with everything that must survive a restart; the same command goes on.

    python exact_run.py DIRECTORY WORKERS [EPOCHS]

Workers augment images, the model drops out, Adam has moments, weights have averages, the learning
rate follows a schedule. Every step's cost goes to `costs` in the directory, to the bit.
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
from towerpack.dataflow import (
    AugmentImageComponent,
    BatchData,
    DataFromArrays,
    MapDataComponent,
    MultiProcessMapData,
    imgaug,
)
from towerpack.models import Dropout, FullyConnected, ModelDesc
from towerpack.optimizer import Adam
from towerpack.train import SimpleTrainer, TrainConfig, launch_train_with_config

SAMPLES, BATCH, EPOCHS = 64, 8, 5
STEPS_PER_EPOCH = SAMPLES // BATCH
SIDE = 6  # pixels of an image, after the crop
PAUSE = 0.01  # seconds after each step, so that a kill finds the run at work


class Model(ModelDesc):
    def inputs(self):
        return [
            tf.TensorSpec([None, SIDE, SIDE, 3], tf.float32, "image"),
            tf.TensorSpec([None], tf.int32, "label"),
        ]

    def build_graph(self, image, label):
        hidden = FullyConnected("fc0", image, 16, activation=tf.nn.relu)
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
    shape = (SAMPLES, SIDE + 2, SIDE + 2, 3)
    images = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return images, images.mean(axis=(1, 2)).argmax(axis=1).astype(np.int32)  # the strongest colour


def with_noise(dp, rng):
    image, label = dp
    return [(image / 255 + rng.normal(size=image.shape, scale=0.05)).astype(np.float32), label]


def training_flow(workers):
    augmentors = [
        imgaug.RandomCrop(SIDE),
        imgaug.Flip(horiz=True),
        imgaug.BrightnessScale((0.8, 1.2)),
    ]
    flow = AugmentImageComponent(DataFromArrays(*samples(0), shuffle=True), augmentors)
    return BatchData(MultiProcessMapData(flow, workers, with_noise), BATCH)


def validation_flow():
    flow = AugmentImageComponent(DataFromArrays(*samples(1)), [imgaug.CenterCrop(SIDE)])
    return BatchData(MapDataComponent(flow, lambda image: (image / 255).astype(np.float32)), BATCH)


def main(directory: Path, workers: int, epochs: int) -> None:
    tf.config.experimental.enable_op_determinism()
    tf.random.set_seed(5)
    logger.set_logger_dir(directory)
    config = TrainConfig(
        model=Model(),
        dataflow=training_flow(workers),
        callbacks=[
            Costs(directory / "costs"),
            EMA(0.9),
            InferenceRunner(validation_flow(), [ClassificationError()]),
            ScheduledHyperParamSetter(
                "learning_rate", [(0, 0.01), (epochs - 1, 0.001)], interp="linear"
            ),
            ModelSaver(3, every="3 steps"),
            MinSaver("validation_error"),
        ],
        max_epoch=epochs,
        resume="auto",
    )
    launch_train_with_config(config, SimpleTrainer())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int([*sys.argv, EPOCHS][3]))
