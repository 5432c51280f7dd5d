"""The loop, the steps, and the kinds of trainers.

A trainer calls the tower function, applies the gradients and runs the callbacks. To go from one
device to many is to choose another trainer.
"""

from towerpack.train.base import DEFAULT_CALLBACKS, DEFAULT_MONITORS, NoOpTrainer, Trainer
from towerpack.train.builder import Objective
from towerpack.train.config import AutoResumeTrainConfig, TrainConfig, launch_train_with_config
from towerpack.train.devices import get_num_gpu
from towerpack.train.distributed import DistributedTrainerReplicated, HorovodTrainer, ranks_of_run
from towerpack.train.gan import (
    GANModelDesc,
    GANTrainer,
    MultiGPUGANTrainer,
    SeparateGANTrainer,
)
from towerpack.train.multi_gpu import (
    AsyncMultiGPUTrainer,
    SyncMultiGPUTrainer,
    SyncMultiGPUTrainerParameterServer,
    SyncMultiGPUTrainerReplicated,
)
from towerpack.train.non_finite import NonFiniteCost, NonFiniteWeights
from towerpack.train.parameter_server import DistributedTrainerParameterServer
from towerpack.train.tower_trainer import SimpleTrainer, SingleCostTrainer, TowerTrainer

__all__ = [
    "DEFAULT_CALLBACKS",
    "DEFAULT_MONITORS",
    "AsyncMultiGPUTrainer",
    "AutoResumeTrainConfig",
    "DistributedTrainerParameterServer",
    "DistributedTrainerReplicated",
    "GANModelDesc",
    "GANTrainer",
    "HorovodTrainer",
    "MultiGPUGANTrainer",
    "NoOpTrainer",
    "NonFiniteCost",
    "NonFiniteWeights",
    "Objective",
    "SeparateGANTrainer",
    "SimpleTrainer",
    "SingleCostTrainer",
    "SyncMultiGPUTrainer",
    "SyncMultiGPUTrainerParameterServer",
    "SyncMultiGPUTrainerReplicated",
    "TowerTrainer",
    "TrainConfig",
    "Trainer",
    "get_num_gpu",
    "launch_train_with_config",
    "ranks_of_run",
]
