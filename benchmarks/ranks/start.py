"""A script that trains M1: prints when the first step is done. Each rank writes its process id."""

import os
import sys
from pathlib import Path

from trainers import work
from trainers.towerpack_models import LeNet

from towerpack.callbacks import Callback
from towerpack.core import logger
from towerpack.core.cluster import this_cluster
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.train import TrainConfig, launch_train_with_config
from towerpack.train.distributed import DistributedTrainerReplicated


class SayFirst(Callback):
    _said = False

    def _next_due(self):
        return None if self._said else 1

    def _after_run(self, values):
        if not self._said:
            os.write(1, b"\nfirst step\n")  # `print` would go into the progress bar
        self._said = True


if __name__ == "__main__":
    directory, cluster, task = Path(sys.argv[1]), this_cluster(), work.TASKS["M1"]
    Path(directory, f"{cluster.rank if cluster else 0}.pid").write_text(str(os.getpid()))
    logger.set_logger_dir(directory / "log", action="k")
    config = TrainConfig(
        model=LeNet(),
        dataflow=BatchData(DataFromArrays(*work.arrays("M1"), shuffle=True), task.batch),
        callbacks=[SayFirst()],
        steps_per_epoch=task.steps,
    )
    launch_train_with_config(config, DistributedTrainerReplicated())
