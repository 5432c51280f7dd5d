"""The progress bar of an epoch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from towerpack.callbacks.base import Callback, name_list, scalars
from towerpack.callbacks.interval import next_in_epoch
from towerpack.core.progress import Progress

FETCHES_PER_EPOCH = 20  # cheap, and often enough to show a trend
NOTE_SECONDS = 0.5  # between two updates of the scalars; people do not read them faster


class ProgressBar(Callback):
    """Shows the steps of each epoch, their speed, the time left, and scalars: by default the cost.

    The speed is in steps, and in samples if the size of the batches is known in advance.

    `names` are names of logged scalars, of moving averages of the tower (`add_moving_summary`), or
    else of tensors of the tower, which are fetched about twenty times an epoch. Apart from that it
    does not prevent the fusion of steps: the bar advances by the number of steps done.

    >>> bar = ProgressBar(["cost"])
    """

    _bar: Progress | None = None

    def __init__(self, names: str | Sequence[str] = ()):
        self.names = name_list(names)

    def _setup_graph(self) -> None:
        self._fetched: dict[str, float] = {}
        self._shown = self.names or list(self.trainer.cost_names)
        averages = self.trainer.moving_averages
        self._to_fetch = [
            name for name in self.names if name not in averages and self._in_tower(name)
        ]

    def _in_tower(self, name: str) -> bool:
        try:
            self.trainer.tower_func.towers.training()[0].get_tensor(name)
        except (KeyError, IndexError, RuntimeError):  # a scalar that will be logged
            return False
        return True

    def _before_train(self) -> None:
        batch = self.trainer.input_source.batch_size()
        known = self.trainer.configuration()
        towers = known.get("towers", 1) * known.get("ranks", 1)
        self._samples = batch * towers if batch is not None else None

    def _before_epoch(self) -> None:
        trainer = self.trainer
        last = f"/{trainer.max_epoch}" if trainer.max_epoch < 10**4 else ""
        description = f"epoch {trainer.epoch_num}{last}"
        self._bar = Progress(trainer.steps_per_epoch, description, "step", self._samples)
        self._bar.__enter__()
        self._bar.update(self.local_step + 1)  # more than 0 in an epoch that was interrupted
        self._seen_step = self.global_step
        self._noted = 0.0

    def _next_due(self) -> int | None:
        if not self._to_fetch:
            return None
        every = max(1, self.trainer.steps_per_epoch // FETCHES_PER_EPOCH)
        # Begin with the first step, so that the step is traced with them at once.
        return next_in_epoch(self.trainer, every, first=1)

    def _before_run(self) -> Sequence[str] | None:
        return self._to_fetch

    def _after_run(self, values: list[Any] | None) -> None:
        numbers = scalars(self, self._to_fetch, values)
        self._fetched = dict(zip(self._to_fetch, numbers, strict=True))

    def _trigger_step(self) -> None:
        if self._bar is None:
            return
        if time.monotonic() - self._noted > NOTE_SECONDS:
            self._noted = time.monotonic()
            self._bar.note(self._note())
        self._bar.update(self.global_step - self._seen_step)
        self._seen_step = self.global_step

    def _note(self) -> str:
        values = {name: self._latest(name) for name in self._shown}
        return " ".join(
            f"{name}={value:.4g}" for name, value in values.items() if value is not None
        )

    def _latest(self, name: str) -> float | None:
        if name in self.trainer.moving_averages:
            return self.trainer.moving_averages[name].value()
        if name in self._to_fetch:
            return self._fetched.get(name)
        try:
            return self.trainer.monitors.get_latest(name)
        except KeyError:  # not logged yet, for example in the first epoch
            return None

    def _after_epoch(self) -> None:
        if self._bar:
            self._bar.note(self._note())
        self._after_train()

    def _after_train(self) -> None:
        if self._bar:
            self._bar.__exit__(None, None, None)
            self._bar = None
