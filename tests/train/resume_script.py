"""A run in three parts, on other numbers of ranks; each part returns what it has trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.callbacks import Callback, ModelSaver, StopTraining
from towerpack.core import logger
from towerpack.dataflow import BatchData, DataFromArrays, DataFromGenerator, MultiProcessRunner
from towerpack.input_source import BatchQueueInput, QueueInput, StagingInput, TFDatasetInput
from towerpack.models import FullyConnected, ModelDesc
from towerpack.optimizer import SGD
from towerpack.tower import get_current_tower_context
from towerpack.train import DistributedTrainerReplicated, TrainConfig, launch_train_with_config

ROWS, STEPS_PER_EPOCH, EPOCHS, TOTAL = 96, 8, 3, 12


def arrays(shuffle: bool = True) -> DataFromArrays:
    ids = np.arange(ROWS, dtype=np.float32)
    return DataFromArrays(ids[:, None], ids / ROWS, shuffle=shuffle)


def generated() -> DataFromGenerator:
    return DataFromGenerator(lambda: ([np.float32([i]), np.float32(i / ROWS)] for i in range(ROWS)))


def dataset(batch: int) -> TFDatasetInput:
    ids = np.arange(ROWS, dtype=np.float32)
    made = tf.data.Dataset.from_tensor_slices((ids[:, None], ids / ROWS))
    made = made.shuffle(ROWS, seed=5, reshuffle_each_iteration=False)
    return TFDatasetInput(made.batch(batch, drop_remainder=True))


SOURCES: dict[str, Callable[[int], Any]] = {
    "arrays": lambda batch: QueueInput(BatchData(arrays(), batch)),
    "staged": lambda batch: StagingInput(QueueInput(BatchData(arrays(), batch))),
    "workers": lambda batch: QueueInput(MultiProcessRunner(BatchData(arrays(), batch), 4, 2)),
    "read in order": lambda batch: QueueInput(BatchData(generated(), batch)),
    "batches made by the source": lambda batch: BatchQueueInput(arrays(), batch),
    "tf.data": dataset,
}


class Model(ModelDesc):
    def __init__(self) -> None:
        self.seen: dict[int, list[float]] = {}  # by the number of the tower among all ranks

    def inputs(self):
        return [tf.TensorSpec([None, 1], tf.float32, "x"), tf.TensorSpec([None], tf.float32, "y")]

    def build_graph(self, x, y):
        context = get_current_tower_context()
        if context.is_training and not context.probing:
            seen = self.seen.setdefault(context.index, [])
            tf.numpy_function(lambda ids: seen.append(ids.ravel().tolist()), [x], [])
        return tf.reduce_mean(tf.square(FullyConnected("fc", x / ROWS, 1)[:, 0] - y), name="cost")

    def optimizer(self):
        return SGD(0.1)


class StopAt(Callback):
    def __init__(self, step: int):
        self.step = step

    def _next_due(self):
        return self.step if self.step > self.global_step else None

    def _trigger_step(self):
        if self.global_step == self.step:
            raise StopTraining("that is enough")


def part(argument: dict[str, Any]) -> dict[str, Any]:
    """Trains from the last checkpoint until step `stop`; returns the batches of each tower."""
    logger.set_level("WARNING")
    found = {}
    for name in argument["names"]:
        tf.keras.utils.set_random_seed(7)
        logger.set_logger_dir(f"{argument['run']}-{list(SOURCES).index(name)}", action="k")
        model, trainer = Model(), DistributedTrainerReplicated(argument["towers"], steps_per_call=3)
        config = TrainConfig(
            model=model,
            data=SOURCES[name](argument["batch"]),
            steps_per_epoch=STEPS_PER_EPOCH,
            max_epoch=EPOCHS,
            callbacks=[StopAt(argument["stop"]), ModelSaver()],
            extra_callbacks=[],
            monitors=[],
            resume="auto",
        )
        launch_train_with_config(config, trainer)
        weights = trainer.store["fc/W"].numpy().ravel().tolist()
        found[name] = {"seen": model.seen, "weights": weights}
    logger.close_log_file()
    return found
