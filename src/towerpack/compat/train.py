"""The trainers of tensorpack's first years, which receive their config: `SimpleTrainer(config)`."""

from __future__ import annotations

from typing import Any

from towerpack import train
from towerpack.train import TrainConfig, get_num_gpu, launch_train_with_config

__all__ = ["SimpleTrainer", "SyncMultiGPUTrainer"]


class _TrainsItsConfig(train.SingleCostTrainer):
    """A trainer that may be given its config; `train()` without arguments runs it."""

    config: TrainConfig | None = None

    def train(self, *args: Any, **options: Any) -> None:
        if args or options or self.config is None:
            super().train(*args, **options)
        else:
            launch_train_with_config(self.config, self)


class SimpleTrainer(_TrainsItsConfig, train.SimpleTrainer):
    """`SimpleTrainer(config).train()` trains on one device."""

    def __init__(self, config: TrainConfig | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.config = config


class SyncMultiGPUTrainer(_TrainsItsConfig, train.SyncMultiGPUTrainer):
    """`SyncMultiGPUTrainer(config).train()` trains on all GPUs."""

    def __init__(self, gpus: Any, **options: Any) -> None:
        config = gpus if isinstance(gpus, TrainConfig) else None
        super().__init__(max(1, get_num_gpu()) if config else gpus, **options)
        self.config = config
