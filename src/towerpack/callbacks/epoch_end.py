"""Which step ends the epoch."""

from __future__ import annotations

from towerpack.callbacks.base import TrainerView


class EpochEnd:
    """The global step of the last step of the current epoch, for `_next_due`.

    It is worked out once in each epoch, when it is first asked for between two steps: later, in
    `_before_run`, the trainer's `local_step` is ahead of its `global_step`.
    """

    def __init__(self) -> None:
        self._of: tuple[TrainerView, int] | None = None
        self._step = 0

    def step(self, trainer: TrainerView) -> int:
        done = trainer.global_step
        known = self._of is not None and self._of == (trainer, trainer.epoch_num)
        if not known or not done < self._step <= done + trainer.steps_per_epoch:
            self._of = (trainer, trainer.epoch_num)
            self._step = done + trainer.steps_per_epoch - 1 - trainer.local_step
        return self._step

    def position(self, trainer: TrainerView) -> int:
        """How many steps of the epoch will have been done after the coming one."""
        return trainer.steps_per_epoch - (self.step(trainer) - trainer.global_step - 1)
