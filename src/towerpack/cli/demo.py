"""The demo: a model of digits, from the data to a picture, written as a user would write it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.callbacks import ClassificationError, InferenceRunner, ModelSaver, ScalarStats
from towerpack.cli.demo_data import all_test_digits, training_flow, validation_flow
from towerpack.core import logger
from towerpack.core.optional import require
from towerpack.export import ModelExporter
from towerpack.input_source import QueueInput
from towerpack.models import Conv2D, LinearWrap, ModelDesc, argscope
from towerpack.monitor import JSONWriter
from towerpack.predict import OfflinePredictor, PredictConfig
from towerpack.tower import add_moving_summary, get_global_step_var
from towerpack.train import SimpleTrainer, TrainConfig, launch_train_with_config

SEED = 0
IMAGE_SIZE = 28
CLASSES = 10
COLUMNS, ROWS = 10, 5
WRONG, RIGHT = "#c62828", "#2e7d32"


class Digits(ModelDesc):
    """Classifies 28x28 grey images of digits."""

    def inputs(self) -> list[Any]:
        return [
            tf.TensorSpec([None, IMAGE_SIZE, IMAGE_SIZE], tf.float32, "image"),
            tf.TensorSpec([None], tf.int32, "label"),
        ]

    def build_graph(self, image: Any, label: Any) -> Any:
        image = tf.expand_dims(image, 3) * 2 - 1  # black is -1, white 1

        with argscope(Conv2D, filters=32, kernel_size=3, activation=tf.nn.relu):
            logits = (
                LinearWrap(image)
                .Conv2D("conv0")
                .MaxPooling("pool0", 2)
                .Conv2D("conv1")
                .Conv2D("conv2")
                .MaxPooling("pool1", 2)
                .Conv2D("conv3")
                .FullyConnected("fc0", 512, activation=tf.nn.relu)
                .Dropout("dropout", rate=0.5)
                .FullyConnected("fc1", CLASSES)()
            )
        tf.nn.softmax(logits, name="prob")

        wrong = tf.not_equal(tf.argmax(logits, axis=1, output_type=tf.int32), label)
        wrong = tf.cast(wrong, tf.float32, name="incorrect_vector")
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        cost = tf.reduce_mean(loss, name="cost")
        add_moving_summary(cost, tf.reduce_mean(wrong, name="train_error"))
        return cost

    def optimizer(self) -> Any:
        rate = tf.compat.v1.train.exponential_decay(
            1e-3, get_global_step_var(), decay_steps=100, decay_rate=0.8
        )
        return tf.compat.v1.train.AdamOptimizer(rate)


def main(epochs: int, directory: Path = Path("train_log/demo")) -> float:
    """Trains the digits model, draws its picture, exports it; returns the validation accuracy."""
    logger.set_logger_dir(directory, "d")  # the demo starts from scratch every time
    tf.random.set_seed(SEED)

    train(epochs)

    config = predict_config(directory)
    images, labels = all_test_digits()
    (probabilities,) = OfflinePredictor(config)(images)
    accuracy = float(np.mean(probabilities.argmax(axis=1) == labels))

    history = JSONWriter.load_existing_json(directory)
    draw(directory / "demo.png", history, images, labels, probabilities)
    ModelExporter(config, probe=[images[:64]]).export_serving(directory / "saved_model")

    print()
    print(f"picture:      {directory / 'demo.png'}")
    print(f"checkpoints:  {directory} (model-*), scalars in stats.jsonl, log in log.log")
    print(f"SavedModel:   {directory / 'saved_model'}, reloaded and compared")
    print(f"TensorBoard:  {sys.executable} -m tensorboard.main --logdir {directory}")
    print(f"validation accuracy: {accuracy:.3f}")
    return accuracy


def predict_config(directory: Path) -> PredictConfig:
    """The trained model, from images to probabilities."""
    return PredictConfig(
        model=Digits(), input_names=["image"], output_names=["prob"], session_init=directory
    )


def train(epochs: int) -> None:
    config = TrainConfig(
        model=Digits(),
        data=QueueInput(training_flow(SEED)),
        callbacks=[
            ModelSaver(max_to_keep=3),
            InferenceRunner(validation_flow(), [ScalarStats("cost"), ClassificationError()]),
        ],
        max_epoch=epochs,
    )
    launch_train_with_config(config, SimpleTrainer())


def draw(
    path: Path,
    history: Sequence[dict[str, Any]],
    images: np.ndarray,
    labels: np.ndarray,
    probabilities: np.ndarray,
) -> None:
    """Writes a picture of the run: its curves, and test digits with their predictions.

    The grid shows the digits that the model got wrong, then those of which it was least certain.
    """
    # Without pyplot, which may open a window.
    figure = require("matplotlib.figure", extra="tf").Figure(
        figsize=(13, 6.2), layout="constrained"
    )
    curves, grid = figure.subfigures(1, 2, width_ratios=[1, 2.1])
    _draw_curves(curves, history)
    _draw_digits(grid, images, labels, probabilities)
    figure.savefig(path, dpi=90)


def _draw_curves(figure: Any, history: Sequence[dict[str, Any]]) -> None:
    epochs = [record["epoch_num"] for record in history]
    loss, error = figure.subplots(2, 1, sharex=True)
    for axes, title, scale, training, validation in [
        (loss, "loss", 1, "cost", "validation_cost"),
        (error, "error, %", 100, "train_error", "validation_error"),
    ]:
        for name, label in ((training, "training"), (validation, "validation")):
            values = [record[name] * scale for record in history]
            axes.plot(epochs, values, "o-", label=label, markersize=3)
        axes.set_title(title, fontsize=11)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    loss.legend(fontsize=9)
    error.set_xlabel("epoch")
    error.set_xticks(epochs[:: max(1, len(epochs) // 8)])


def _draw_digits(
    figure: Any, images: np.ndarray, labels: np.ndarray, probabilities: np.ndarray
) -> None:
    predicted = probabilities.argmax(axis=1)
    wrong = predicted != labels
    confidence = probabilities.max(axis=1)
    chosen = np.lexsort([confidence, ~wrong])[: COLUMNS * ROWS]
    figure.suptitle(
        f"{wrong.sum()} of {len(labels)} test digits are wrong (red, predicted ≠ true); "
        "then the least certain ones",
        fontsize=11,
    )
    for axes, index in zip(figure.subplots(ROWS, COLUMNS).flat, chosen, strict=False):
        axes.imshow(images[index], cmap="gray_r", vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[])
        colour = WRONG if wrong[index] else RIGHT
        text = f"{predicted[index]} ≠ {labels[index]}" if wrong[index] else f"{predicted[index]}"
        axes.set_title(text, fontsize=11, color=colour, pad=3)
        for edge in axes.spines.values():
            edge.set_color(colour)
            edge.set_linewidth(2 if wrong[index] else 1)
