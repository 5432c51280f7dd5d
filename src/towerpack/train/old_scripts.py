"""The forms of tensorpack's first years: `SimpleTrainer(config).train()`.

Everything that these forms need is in this file, except that `SimpleTrainer` and
`SyncMultiGPUTrainer` accept a config as their first argument.
"""

from __future__ import annotations

from typing import Any

from towerpack.train.config import TrainConfig, launch_train_with_config
from towerpack.train.devices import get_num_gpu
from towerpack.train.single_cost import SingleCostTrainer


class TrainsItsConfig(SingleCostTrainer):
    """A trainer that may be given its config at once; `train()` without arguments runs it."""

    config: TrainConfig | None = None

    def train(self, *args: Any, **options: Any) -> None:
        if args or options or self.config is None:
            super().train(*args, **options)
        else:
            launch_train_with_config(self.config, self)


def all_gpus() -> int:
    """How many towers a config that says nothing about them has."""
    return max(1, get_num_gpu())
