"""Training one cost on one device."""

from __future__ import annotations

from towerpack.train.single_cost import SingleCostTrainer


class SimpleTrainer(SingleCostTrainer):
    """Trains one tower on one device; the arguments are those of `TowerTrainer`."""

    def __init__(
        self, *, eager: bool = False, jit: bool | str = "auto", steps_per_call: int | str = "auto"
    ) -> None:
        super().__init__(eager=eager, jit=jit, steps_per_call=steps_per_call)
