"""The batches of the steps to come: waiting for them, but not in vain."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from towerpack.callbacks import StopTraining
from towerpack.input_source.base import EndOfData, InputSource

LOOK_SECONDS = 0.2  # between two looks, while waiting for data, whether Ctrl-C was pressed
NO_LIMIT = sys.maxsize
REST_CALLS, MOST_REST_CALLS = 16, 1024  # before more is hoped for again, after some vain waiting


class Supply:
    """How many steps of `towers` batches each the source has data for.

    Where data is late, steps wait for each other, since few calls of many steps cost less than many
    calls of few. But a flow may be so slow that nothing is won, its queue may be too small, or it
    may wait for the step itself. So they wait for a limited time; if fewer came in it, no more than
    those are waited for in the next calls, and each time that this happens, in twice as many calls.

    `look` is called from time to time while waiting, and may raise to leave.
    """

    def __init__(self, source: InputSource, towers: int, look: Callable[[], None]):
        self._source, self._towers, self._look = source, towers, look
        self._hope = NO_LIMIT
        self._rest, self._reached = REST_CALLS, 0

    def wait_for_step(self, taken: int, looks: bool = True) -> None:
        """Waits until every tower has a batch, after those that were taken, or no more will come.

        Raises:
            StopTraining: there is none at all.
        """
        try:
            if not looks:
                self._source.wait(self._towers, taken)
                return
            while not self._wait(self._towers, taken, LOOK_SECONDS)[1]:
                self._look()
        except EndOfData:
            raise StopTraining("the end of the data") from None

    def gather(self, wanted: int, seconds: float, most: int, taken: int) -> int:
        """How many steps can run now, up to `most`, after waiting for `wanted` of them.

        The first must have its data already. For others it waits so many seconds at most.
        """
        hoped = min(wanted, self._hope)
        ready = self._steps_within(seconds, hoped, taken)
        self._learn(hoped, ready)
        return self._steps_within(0, most, taken) if hoped <= ready < most else ready

    def _steps_within(self, seconds: float, wanted: int, taken: int) -> int:
        until = time.monotonic() + seconds
        while True:
            left = max(until - time.monotonic(), 0)
            ready, final = self._wait(wanted * self._towers, taken, min(LOOK_SECONDS, left))
            if final or time.monotonic() >= until:
                return max(1, ready // self._towers)
            self._look()

    def _wait(self, batches: int, taken: int, seconds: float) -> tuple[int, bool]:
        """How many of the batches have come; whether all, or all that will before a step."""
        begun = time.monotonic()
        ready = self._source.wait(batches, taken, seconds)
        return ready, ready >= batches or time.monotonic() - begun < seconds

    def _learn(self, hoped: int, ready: int) -> None:
        if ready < hoped:
            self._hope, self._reached = ready, 0
            self._rest = min(2 * self._rest, MOST_REST_CALLS)
        elif self._hope < NO_LIMIT:
            self._reached += 1
            if self._reached == self._rest:
                self._hope, self._reached = 2 * self._hope, 0
