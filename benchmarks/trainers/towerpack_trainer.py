"""towerpack as it comes: a flow of arrays, the default callbacks and monitors, a log directory."""

import tempfile

from towerpack.callbacks import Callback, StopTraining
from towerpack.core import logger
from towerpack.dataflow import BatchData, DataFromArrays
from towerpack.input_source import QueueInput
from towerpack.train import SimpleTrainer, TrainConfig, launch_train_with_config
from trainers import work
from trainers.serve import versions
from trainers.towerpack_models import NETWORKS

WAYS = {
    "step": "steps one by one",
    "loop": "many steps in one call",
    "compiled": "many steps in one call compiled by XLA",
}


class TakeTurns(Callback):
    """Tells the turns of every epoch, and stops when they are over."""

    chief_only = False

    def __init__(self, turns):
        self.turns, self.settled = turns, False

    def _trigger_epoch(self):
        trainer = self.trainer
        if not self.settled:
            way = trainer.state().get("mode")
            self.settled = way is not None
            self.turns.settings += f", {WAYS.get(way, way)}" if self.settled else ""
        if not self.turns.done(trainer.steps_per_epoch, self.settled, trainer.input_source.waited):
            raise StopTraining("the benchmark is over")


def train(model, turns, make_trainer=SimpleTrainer, towers=1):
    turns.settings = f"{versions('towerpack', 'tensorflow-cpu')}, all defaults"
    task = work.TASKS[model]
    flow = BatchData(DataFromArrays(*work.arrays(model), shuffle=True), task.batch // towers)
    launch(NETWORKS[model](), flow, task.steps, turns, make_trainer)


def launch(model, flow, steps, turns, make_trainer=SimpleTrainer):
    with tempfile.TemporaryDirectory() as directory:
        logger.set_logger_dir(directory)
        config = TrainConfig(
            model=model,
            data=QueueInput(flow),
            callbacks=[TakeTurns(turns)],
            steps_per_epoch=steps,
        )
        launch_train_with_config(config, make_trainer())
        logger.close_log_file()
