"""Intervals of steps, epochs and time, and the last step of an epoch."""

from __future__ import annotations

from dataclasses import dataclass

from towerpack.callbacks.base import TrainerView
from towerpack.core.every import Every, Moment, every


def last_step(trainer: TrainerView) -> int:
    """The global step of the last step of the current epoch.

    For `_next_due` only: in `_before_run`, `local_step` is ahead of `global_step`.
    """
    return trainer.global_step + trainer.steps_per_epoch - 1 - trainer.local_step


def next_in_epoch(trainer: TrainerView, period: int, first: int = 0) -> int:
    """The next global step whose number in its epoch is `first` plus a multiple of `period`.

    Steps of an epoch are numbered from 1. For `_next_due` only, as `last_step`.
    """
    return trainer.global_step + 1 + (first - trainer.local_step - 2) % period


@dataclass
class Interval:
    """Any of several intervals, checked along a run.

    Steps and epochs count from the beginning of the model, not of the process, so that a resumed
    run acts where the uninterrupted one would have. Time counts from the start of the process's
    run, and is checked between two calls of the step function. Several ranks act together.
    """

    parts: list[Every]
    time_is_up: bool = False  # set by `check_time`; the owner clears it when it has acted
    _at_end: bool = False  # whether an interval passed with the last step of the epoch

    def start(self, trainer: TrainerView) -> None:
        self._started = trainer.ranks.now()
        self._last = Moment(trainer.global_step)
        self._at_end = self.time_is_up = False

    def check_time(self, trainer: TrainerView) -> bool:
        """Whether an interval of time has passed since `time_is_up` was cleared."""
        self.time_is_up = self.has_passed(trainer, "seconds") or self.time_is_up
        return self.time_is_up

    def next_step(self, first: int) -> int | None:
        """The next step, not before `first`, at which an interval of steps ends."""
        counts = [int(part.count) for part in self.parts if part.unit == "steps"]
        return min((-(-first // count) * count for count in counts), default=None)

    def is_step(self, step: int) -> bool:
        """Whether an interval of steps ends at this one."""
        return self.next_step(step) == step

    def is_epoch(self, epoch: int) -> bool:
        """Whether an interval of epochs ends with this one."""
        return any(epoch % part.count == 0 for part in self.parts if part.unit == "epochs")

    def has_passed(self, trainer: TrainerView, *units: str) -> bool:
        """Whether an interval of one of the units has passed since the last check."""
        now = Moment(trainer.global_step, seconds=trainer.ranks.now() - self._started)
        last, self._last = self._last, now
        return any(part.due(now, last) for part in self.parts if part.unit in units)

    def triggers_after_step(self, trainer: TrainerView) -> bool:
        """Whether to trigger now; called in `_trigger_step`.

        The last step of an epoch triggers with the end of the epoch instead. A checkpoint saved
        before the other callbacks have handled that end would be resumed after it.
        """
        passed = self.has_passed(trainer, "steps", "seconds")
        self._at_end = passed and trainer.local_step == trainer.steps_per_epoch - 1
        return passed and not self._at_end

    def triggers_after_epoch(self, trainer: TrainerView) -> bool:
        """Whether to trigger now; called in `_trigger_epoch`."""
        at_end, self._at_end = self._at_end, False
        return at_end or self.is_epoch(trainer.epoch_num)


def interval_of(
    every_k_steps: int | str | Every | None = None,
    every_k_epochs: int | None = None,
    interval: str | Every | None = None,
) -> Interval:
    """The interval of these arguments; the first may also be a text for `every`."""
    parts: list[Every] = []
    for count, unit in ((every_k_steps, "steps"), (every_k_epochs, "epochs")):
        if isinstance(count, str | Every):
            parts.append(every(count))
        elif count is not None:
            if int(count) != count or count < 1:
                raise ValueError(f"every_k_{unit} must be an integer of at least 1, not {count!r}")
            parts.append(Every(int(count), unit))
    if interval is not None:
        parts.append(every(interval))
    return Interval(parts)


def earliest(*steps: int | None) -> int | None:
    """The smallest of the given steps; None if all of them are None."""
    return min((step for step in steps if step is not None), default=None)
