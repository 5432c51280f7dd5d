"""Where the time of an epoch goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from towerpack.callbacks import Callbacks
from towerpack.monitor.verdict import EpochTimes, StageClock


class EpochClock:
    """Adds up the seconds in steps and in callbacks, from one `lap` to the next.

    The time of callbacks in their events around a step counts for them and not for the step. `flow`
    is the data flow whose stages are measured, if there is one.
    """

    def __init__(self, callbacks: Callbacks, flow: Any = None) -> None:
        self._callbacks = callbacks
        callbacks.lap()  # what they did before training belongs to no epoch
        self._stages = StageClock(flow) if flow is not None else None
        self._begun = time.perf_counter()
        self._waited = self._steps = 0.0
        self._is_first = True
        self.step_seconds = 0.0  # in steps, over all laps

    @contextlib.contextmanager
    def in_step(self) -> Iterator[None]:
        clock = self._callbacks.clock
        begun, of_callbacks = time.perf_counter(), clock.seconds
        try:
            yield
        finally:
            seconds = time.perf_counter() - begun - (clock.seconds - of_callbacks)
            self._steps += seconds
            self.step_seconds += seconds

    def lap(self, waited: float) -> EpochTimes:
        """The times since the last lap; `waited` are all seconds that steps waited so far."""
        now = time.perf_counter()
        data = min(waited - self._waited, self._steps)
        by_callback = self._callbacks.lap()
        times = EpochTimes(
            total=now - self._begun,
            data=data,
            step=self._steps - data,
            callbacks=sum(cost.seconds for cost in by_callback.values()),
            stages=self._stages.lap() if self._stages else (),
            by_callback=by_callback,
            first=self._is_first,
        )
        self._begun, self._waited, self._steps = now, waited, 0.0
        self._is_first = False
        return times
