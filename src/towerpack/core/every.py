"""One type for every interval: `every('500 steps')`, `every('1 epoch')`, `every('10 min')`.

An interval is due if the run has passed a multiple of it since the last check. So it fires exactly
once, even if the check comes late because several steps ran in one call.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Every", "every"]

_SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
}
_UNITS = {"step": "steps", "steps": "steps", "epoch": "epochs", "epochs": "epochs"}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)?\s*([a-z]+)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Moment:
    """A point in a run: the completed steps and epochs, and the seconds since it began."""

    steps: int = 0
    epochs: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Every:
    """An interval of `count` `unit`s, where unit is 'steps', 'epochs' or 'seconds'."""

    count: float
    unit: str

    def due(self, now: Moment, last: Moment) -> bool:
        """Whether a multiple of the interval lies in (last, now].

        >>> every('500 steps').due(Moment(steps=1003), last=Moment(steps=998))
        True
        """
        return getattr(now, self.unit) // self.count > getattr(last, self.unit) // self.count

    def __str__(self) -> str:
        unit = self.unit.removesuffix("s") if self.count == 1 else self.unit
        return f"{self.count:g} {unit}"


def every(interval: str | Every) -> Every:
    """Parses an interval; the default count is one.

    >>> every('10 min')
    Every(count=600.0, unit='seconds')
    >>> str(every('epoch'))
    '1 epoch'
    """
    if isinstance(interval, Every):
        return interval
    match = _PATTERN.fullmatch(interval) if isinstance(interval, str) else None
    word = match[2].lower() if match else ""
    if match is None or not (word in _UNITS or word in _SECONDS):
        raise ValueError(
            "expected an interval like '500 steps', '1 epoch', '30 s', '10 min' or '2 h', "
            f"received {interval!r}"
        )
    count = float(match[1] or 1)
    if word in _SECONDS:
        count *= _SECONDS[word]
    elif count != int(count):
        raise ValueError(f"expected a whole number of {_UNITS[word]}, received {interval!r}")
    if count <= 0:
        raise ValueError(f"expected a positive interval, received {interval!r}")
    return Every(count if word in _SECONDS else int(count), _UNITS.get(word, "seconds"))
