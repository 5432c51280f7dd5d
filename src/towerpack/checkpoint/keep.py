"""Which checkpoints stay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_HOUR = 3600.0


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was written: its name, when, and what was monitored at that time."""

    name: str
    saved_at: float
    value: float | None = None


@dataclass(frozen=True)
class KeepBest:
    """Keeps the `count` checkpoints at which the scalar `stat` was lowest (or highest).

    >>> KeepBest("validation_error", count=3, mode="min")
    KeepBest(stat='validation_error', count=3, mode='min')
    """

    stat: str
    count: int = 1
    mode: str = "min"

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ValueError(f"expected mode 'min' or 'max', received {self.mode!r}")
        if self.count < 1:
            raise ValueError(f"expected to keep at least one, received count={self.count}")


@dataclass(frozen=True)
class Keep:
    """The `last` checkpoints, besides one in every `hours` for good, besides the best."""

    last: int = 10
    hours: float | None = None
    best: KeepBest | None = None

    def __post_init__(self) -> None:
        if self.last < 1:
            raise ValueError(f"expected to keep at least one checkpoint, received {self.last}")
        if self.hours is not None and not self.hours > 0:
            raise ValueError(f"expected a time longer than nothing, received {self.hours} hours")

    def outdated(self, saved: Sequence[Saved], began: float) -> list[Saved]:
        """Those of `saved` (oldest first) that no rule keeps; `began` is when the run did.

        What is kept for good does not depend on what was removed before.

        >>> hourly = [Saved(f"model-{n}", saved_at=n * 3600.0) for n in range(1, 5)]
        >>> [old.name for old in Keep(last=1, hours=2).outdated(hourly, began=0)]
        ['model-1', 'model-3']
        """
        staying = {each.name for each in saved[-self.last :]}
        if self.hours is not None:
            latest = began
            for each in saved:
                if each.saved_at - latest >= self.hours * _HOUR:
                    staying.add(each.name)
                    latest = each.saved_at
        if self.best is not None:
            rated = [each for each in saved if each.value is not None]
            rated = [each for each in rated if not math.isnan(each.value)]  # type: ignore[arg-type]
            rated.sort(key=lambda each: each.value, reverse=self.best.mode == "max")  # type: ignore[arg-type,return-value]
            staying |= {each.name for each in rated[: self.best.count]}
        return [each for each in saved if each.name not in staying]
