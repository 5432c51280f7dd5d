"""A script of towerpack on M1: says when its first step is done, at last its peak memory."""

import os
import tempfile

from towerpack.callbacks import Callback
from towerpack.core import logger
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.train import SimpleTrainer, TrainConfig, launch_train_with_config
from trainers import work
from trainers.towerpack_models import LeNet


class SayFirst(Callback):
    def _next_due(self):
        return 1 if self.global_step == 0 else None

    def _after_run(self, values):
        os.write(1, b"first step\n")  # `print` would go into the progress bar


if __name__ == "__main__":
    task = work.TASKS["M1"]
    with tempfile.TemporaryDirectory() as directory:
        logger.set_logger_dir(directory)
        config = TrainConfig(
            model=LeNet(),
            dataflow=BatchData(DataFromArrays(*work.arrays("M1"), shuffle=True), task.batch),
            callbacks=[SayFirst()],
            steps_per_epoch=task.steps,
            max_epoch=work.START_EPOCHS,
        )
        launch_train_with_config(config, SimpleTrainer())
        print(work.peak_memory(), flush=True)
        logger.close_log_file()
