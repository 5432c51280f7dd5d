"""A run whose record must survive a kill; the same command goes on. Started by `test_kill.py`.

    python -m tests.callbacks.recorded_run DIRECTORY [STEP]

After STEP it waits for the end that somebody is about to bring.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from tests.tiny_model import TinyModel, tiny_arrays, tiny_flow
from towerpack._tensorflow import tf
from towerpack.callbacks import (
    Callback,
    ClassificationError,
    InferenceRunner,
    ModelSaver,
    PredictionImages,
)
from towerpack.core import logger
from towerpack.train import SimpleTrainer, TrainConfig, launch_train_with_config

STEPS_PER_EPOCH, EPOCHS, SAVED_EVERY = 10, 4, 7
WAITS = "waits"  # the file that says so


class Costs(Callback):
    """Puts the cost of every step, and its share of what happens in the middle of an epoch."""

    def _before_run(self):
        return ["cost"]

    def _after_run(self, values):
        self.trainer.monitors.put_scalar("step_cost", values[0])


class WaitForTheEnd(Callback):
    """Before the step behind `step` begins: what came before it has had all its events."""

    def __init__(self, step: int, directory: Path):
        self.step, self.directory = step, directory

    def _before_run(self):
        if self.global_step == self.step:
            (self.directory / WAITS).touch()
            threading.Event().wait()


def main(directory: Path, stop: int | None) -> None:
    tf.config.experimental.enable_op_determinism()
    tf.random.set_seed(5)
    logger.set_logger_dir(directory)
    validation = tiny_flow(shuffle=False)
    callbacks = [
        Costs(),
        InferenceRunner(validation, [ClassificationError()]),
        PredictionImages([tiny_arrays()[0]], "prob", ["x"], lambda x, outputs: outputs[0] * 255),
        ModelSaver(every=f"{SAVED_EVERY} steps"),
    ]
    if stop is not None:
        callbacks.append(WaitForTheEnd(stop, directory))
    config = TrainConfig(
        model=TinyModel(),
        dataflow=tiny_flow(),
        callbacks=callbacks,
        steps_per_epoch=STEPS_PER_EPOCH,
        max_epoch=EPOCHS,
        resume="auto",
    )
    launch_train_with_config(config, SimpleTrainer())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else None)
