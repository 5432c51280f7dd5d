"""Callbacks without training."""

from __future__ import annotations

from towerpack.train.base import Trainer


class NoOpTrainer(Trainer):
    """Its steps do nothing: to run callbacks by themselves, an evaluation for example.

    `tower_func` and `input_source` may be set by whoever needs them.
    """

    def run_step(self) -> None:
        """Nothing."""

    @property
    def runs_many(self) -> bool:
        return True

    def run_steps(self, count: int) -> int:
        return count
