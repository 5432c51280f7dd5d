"""The progress bar of an epoch."""

from __future__ import annotations

from towerpack.callbacks.base import Callback
from towerpack.core.progress import Progress


class ProgressBar(Callback):
    """Shows the steps of each epoch, their speed and the time left."""

    _bar: Progress | None = None

    def _before_epoch(self) -> None:
        trainer = self.trainer
        last = f"/{trainer.max_epoch}" if trainer.max_epoch < 10**4 else ""
        description = f"epoch {trainer.epoch_num}{last}"
        self._bar = Progress(trainer.steps_per_epoch, description, "step").__enter__()

    def _trigger_step(self) -> None:
        if self._bar:
            self._bar.update()

    def _after_epoch(self) -> None:
        self._close()

    def _after_train(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar:
            self._bar.__exit__(None, None, None)
            self._bar = None
