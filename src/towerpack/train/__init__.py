"""The loop, and one file per kind of trainer.

A trainer calls the tower function, applies the gradients and runs the callbacks. To go from one
device to many is to choose another trainer.
"""

from towerpack.train.base import Trainer
from towerpack.train.config import (
    DEFAULT_CALLBACKS,
    DEFAULT_MONITORS,
    TrainConfig,
    launch_train_with_config,
)
from towerpack.train.simple import SimpleTrainer

__all__ = [
    "DEFAULT_CALLBACKS",
    "DEFAULT_MONITORS",
    "SimpleTrainer",
    "TrainConfig",
    "Trainer",
    "launch_train_with_config",
]
