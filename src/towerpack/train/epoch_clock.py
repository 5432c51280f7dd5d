"""Where the time of an epoch goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from towerpack.callbacks import Callbacks
from towerpack.monitor import RankTimes
from towerpack.monitor.verdict import EpochTimes, StageClock
from towerpack.train.ranks import OneRank


class EpochClock:
    """Adds up the seconds in steps and in callbacks, from one `lap` to the next.

    The time of callbacks in their events around a step counts for them and not for the step. `flow`
    is the data flow whose stages are measured, if there is one. `ranks` train together: `lap` is
    called on all of them.
    """

    def __init__(
        self, callbacks: Callbacks, flow: Any = None, ranks: OneRank | None = None
    ) -> None:
        self._callbacks, self._ranks = callbacks, ranks or OneRank()
        callbacks.lap()  # what they did before training belongs to no epoch
        self._stages = StageClock(flow) if flow is not None else None
        self._begun = time.perf_counter()
        self._waited = self._steps = self._agreeing = 0.0
        self._sums = self._ranks.seconds_in_sums()
        self._is_first = True
        self.step_seconds = 0.0  # in steps, over all laps

    @contextlib.contextmanager
    def in_step(self) -> Iterator[None]:
        clock = self._callbacks.clock
        begun, of_callbacks = time.perf_counter(), clock.seconds
        waited = self._ranks.waited
        try:
            yield
        finally:
            self._agreeing += self._ranks.waited - waited
            seconds = time.perf_counter() - begun - (clock.seconds - of_callbacks)
            self._steps += seconds
            self.step_seconds += seconds

    def lap(self, waited: float) -> EpochTimes:
        """The times since the last lap; `waited` are all seconds that steps waited so far."""
        now = time.perf_counter()
        data = min(waited - self._waited, self._steps)
        exchange, ranks = self._exchange(data)
        by_callback = self._callbacks.lap()
        times = EpochTimes(
            total=now - self._begun,
            data=data,
            step=self._steps - data - exchange,
            callbacks=sum(cost.seconds for cost in by_callback.values()),
            stages=self._stages.lap() if self._stages else (),
            by_callback=by_callback,
            first=self._is_first,
            exchange=exchange,
            ranks=ranks,
        )
        self._begun, self._waited, self._steps, self._agreeing = now, waited, 0.0, 0.0
        self._is_first = False
        return times

    def _exchange(self, data: float) -> tuple[float, list[RankTimes]]:
        """The seconds that the steps spent in exchange with other ranks, and the times of all."""
        ranks = self._ranks
        if ranks.size == 1:
            return 0.0, []
        sums = ranks.seconds_in_sums()
        exchange = min(self._agreeing + sums - self._sums, self._steps - data)
        self._sums = sums
        table = ranks.agree(
            data, exchange, self._steps - data - exchange, what="the times of an epoch"
        )
        rows = zip(ranks.hosts, table.tolist(), strict=True)
        return exchange, [RankTimes(host, *row) for host, row in rows]
