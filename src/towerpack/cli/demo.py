"""The demo: one model from data to picture, in the order in which a user would write it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from towerpack._tensorflow import tf
from towerpack.callbacks import ClassificationError, InferenceRunner, ModelSaver, ScalarStats
from towerpack.cli.demo_data import all_test_digits, training_flow, validation_flow
from towerpack.cli.demo_model import Digits
from towerpack.cli.demo_picture import draw
from towerpack.core import logger
from towerpack.export import ModelExporter
from towerpack.input_source import QueueInput
from towerpack.monitor import JSONWriter
from towerpack.predict import OfflinePredictor, PredictConfig
from towerpack.train import SimpleTrainer, TrainConfig, launch_train_with_config

EPOCHS = 15
SEED = 0


def main(directory: str | Path = "train_log/demo", epochs: int = EPOCHS) -> float:
    """Trains the digits model, draws its picture, exports it; returns the validation accuracy."""
    directory = logger.set_logger_dir(directory, "d")  # the demo begins anew every time
    tf.random.set_seed(SEED)

    train(epochs)

    predictor_config = PredictConfig(
        model=Digits(), input_names=["image"], output_names=["prob"], session_init=directory
    )
    images, labels = all_test_digits()
    (probabilities,) = OfflinePredictor(predictor_config)(images)
    accuracy = float(np.mean(probabilities.argmax(axis=1) == labels))

    history = JSONWriter.load_existing_json(directory)
    draw(directory / "demo.png", history, images, labels, probabilities)
    ModelExporter(predictor_config, probe=[images[:64]]).export_serving(directory / "saved_model")

    shown = shorter(directory)
    print()
    print(f"picture:      {shown / 'demo.png'}")
    print(f"checkpoints:  {shown} (model-*), scalars in stats.jsonl, log in log.log")
    print(f"SavedModel:   {shown / 'saved_model'}, reloaded and compared")
    print(f"TensorBoard:  {tensorboard_command()} --logdir {shown}")
    print(f"validation accuracy: {accuracy:.3f}")
    return accuracy


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


def shorter(path: Path) -> Path:
    """The path as a user would type it from here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def tensorboard_command() -> str:
    """TensorBoard of this environment, also when the environment is not activated."""
    beside = Path(sys.executable).with_name("tensorboard")
    return str(shorter(beside)) if beside.exists() else f"{sys.executable} -m tensorboard.main"
