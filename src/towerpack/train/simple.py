"""Training one cost on one device."""

from __future__ import annotations

from typing import Any

from towerpack.train.single_cost import SingleCostTrainer


class SimpleTrainer(SingleCostTrainer):
    """Trains one tower on one device; the options are those of `StepOptions`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
