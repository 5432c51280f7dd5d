"""When something that happens at intervals is due."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from towerpack.callbacks.base import TrainerView
from towerpack.core.every import Every, Moment, every


class EpochEnd:
    """The global step of the last step of the current epoch, for `_next_due`.

    It is computed once in each epoch, when it is first asked for between two steps: later, in
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
        """The number of steps of the epoch that are done after the coming one."""
        return trainer.steps_per_epoch - (self.step(trainer) - trainer.global_step - 1)


@dataclass
class Interval:
    """Any of several intervals, checked along a run.

    Steps and epochs count from the beginning of the model, not of the process, so that a resumed
    run acts where the uninterrupted one would have. Time counts from the start of the process's
    run, and is checked between two calls of the step function.
    """

    parts: list[Every]
    _end: EpochEnd = field(default_factory=EpochEnd)

    def start(self, trainer: TrainerView) -> None:
        self._started = time.monotonic()
        self._last = Moment(trainer.global_step)

    def next_step(self, first: int) -> int | None:
        """The next step, not before `first`, at which an interval of steps ends."""
        counts = [int(part.count) for part in self.parts if part.unit == "steps"]
        return min((-(-first // count) * count for count in counts), default=None)

    def due_step(self, trainer: TrainerView) -> bool:
        """Whether an interval of steps or of time has passed since the last check."""
        return self._passed(trainer, ("steps", "seconds"))

    def due_time(self, trainer: TrainerView) -> bool:
        """Whether an interval of time has passed since the last check."""
        return self._passed(trainer, ("seconds",))

    def _passed(self, trainer: TrainerView, units: tuple[str, ...]) -> bool:
        now = Moment(trainer.global_step, seconds=time.monotonic() - self._started)
        last, self._last = self._last, now
        return any(part.due(now, last) for part in self.parts if part.unit in units)

    def is_step(self, step: int) -> bool:
        """Whether an interval of steps ends at this one."""
        return self._ends_at(step, "steps")

    def is_epoch(self, epoch: int) -> bool:
        """Whether an interval of epochs ends with this one."""
        return self._ends_at(epoch, "epochs")

    def _ends_at(self, number: int, unit: str) -> bool:
        return any(number % part.count == 0 for part in self.parts if part.unit == unit)

    def last_of_run(self, trainer: TrainerView) -> int | None:
        """The very last step of the run, in its last epoch; None in other epochs."""
        return self._end.step(trainer) if trainer.epoch_num == trainer.max_epoch else None


def interval_of(
    every_k_steps: int | str | Every | None = None,
    every_k_epochs: int | None = None,
    interval: str | Every | None = None,
) -> Interval:
    """The interval of these arguments; the first may also be a text for `every`."""
    parts: list[Every] = []
    if isinstance(every_k_steps, str | Every):
        parts.append(every(every_k_steps))
    elif every_k_steps is not None:
        parts.append(Every(_checked(every_k_steps, "every_k_steps"), "steps"))
    if every_k_epochs is not None:
        parts.append(Every(_checked(every_k_epochs, "every_k_epochs"), "epochs"))
    if interval is not None:
        parts.append(every(interval))
    return Interval(parts)


def earliest(*steps: int | None) -> int | None:
    """The smallest of the steps that are known; None if none is."""
    return min((step for step in steps if step is not None), default=None)


def _checked(count: int, name: str) -> int:
    if int(count) != count or count < 1:
        raise ValueError(f"expected {name} to be a whole number of at least 1, received {count!r}")
    return int(count)
