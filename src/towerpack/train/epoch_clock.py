"""Where the time of an epoch goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from towerpack.monitor.verdict import EpochTimes, StageClock


class EpochClock:
    """Adds up the seconds in steps and in callbacks, from one `lap` to the next.

    `waiting` gives the seconds that steps have waited for data so far, which are part of those
    in steps; `flow` is the data flow whose stages are looked at, if there is one.
    """

    def __init__(self, flow: Any = None) -> None:
        self._stages = StageClock(flow) if flow is not None else None
        self._begun = time.perf_counter()
        self._waited = self._steps = self._callbacks = 0.0
        self.step_seconds = 0.0  # in steps, over all laps

    @contextlib.contextmanager
    def in_step(self) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._steps += time.perf_counter() - begun
            self.step_seconds += time.perf_counter() - begun

    @contextlib.contextmanager
    def in_callbacks(self) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._callbacks += time.perf_counter() - begun

    def lap(self, waited: float) -> EpochTimes:
        """The times since the last lap; `waited` are all seconds that steps waited so far."""
        now = time.perf_counter()
        data = min(waited - self._waited, self._steps)
        times = EpochTimes(
            total=now - self._begun,
            data=data,
            step=self._steps - data,
            callbacks=self._callbacks,
            stages=self._stages.lap() if self._stages else (),
        )
        self._begun, self._waited = now, waited
        self._steps = self._callbacks = 0.0
        return times
