"""Training one cost on one device."""

from __future__ import annotations

from typing import Any

from towerpack.train.config import TrainConfig
from towerpack.train.old_scripts import TrainsItsConfig


class SimpleTrainer(TrainsItsConfig):
    """Trains one tower on one device; the options are those of `StepOptions`."""

    def __init__(self, config: TrainConfig | None = None, **options: Any) -> None:
        if config is not None and not isinstance(config, TrainConfig):
            raise TypeError(f"expected SimpleTrainer() or a TrainConfig, received {config!r}")
        super().__init__(**options)
        self.config = config
