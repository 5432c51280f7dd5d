"""When something that happens now and then is to happen."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from towerpack.callbacks.base import TrainerView
from towerpack.callbacks.epoch_end import EpochEnd
from towerpack.core.every import Every, Moment, every


@dataclass
class Interval:
    """Any of several intervals, looked at along a run.

    Steps and epochs count from the beginning of the model, not of the process, so that a resumed
    run acts where the uninterrupted one would have. Time counts from the start of the process's
    run, and is looked at between two calls of the step function.
    """

    parts: list[Every]
    _end: EpochEnd = field(default_factory=EpochEnd)

    def start(self, trainer: TrainerView) -> None:
        self._started = time.monotonic()
        self._last = Moment(trainer.global_step)

    def next_step(self, trainer: TrainerView, first: int) -> int | None:
        """The next step, not before `first`, that an interval of steps names."""
        counts = [int(part.count) for part in self.parts if part.unit == "steps"]
        return min((-(-first // count) * count for count in counts), default=None)

    def due_step(self, trainer: TrainerView) -> bool:
        """Whether an interval of steps or of time has passed since the last look."""
        return self._passed(trainer, ("steps", "seconds"))

    def due_time(self, trainer: TrainerView) -> bool:
        """Whether an interval of time has passed since the last look."""
        return self._passed(trainer, ("seconds",))

    def _passed(self, trainer: TrainerView, units: tuple[str, ...]) -> bool:
        now = Moment(trainer.global_step, seconds=time.monotonic() - self._started)
        last, self._last = self._last, now
        return any(part.due(now, last) for part in self.parts if part.unit in units)

    def is_step(self, step: int) -> bool:
        """Whether an interval of steps names this one."""
        return any(step % part.count == 0 for part in self.parts if part.unit == "steps")

    def is_epoch(self, epoch: int) -> bool:
        """Whether an interval of epochs names this one."""
        return any(epoch % part.count == 0 for part in self.parts if part.unit == "epochs")

    def last_of_run(self, trainer: TrainerView) -> int | None:
        """The very last step of the run, in its last epoch; None in others."""
        return self._end.step(trainer) if trainer.epoch_num == trainer.max_epoch else None

    def __str__(self) -> str:
        return " or ".join(str(part) for part in self.parts)


def interval_of(
    every_k_steps: int | str | Every | None,
    every_k_epochs: int | None,
    interval: str | Every | None = None,
) -> Interval:
    """The interval that these arguments ask for; the first may also be one of `every`'s texts."""
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


def _checked(count: int, name: str) -> int:
    if int(count) != count or count < 1:
        raise ValueError(f"expected {name} to be a whole number of at least 1, received {count!r}")
    return int(count)
