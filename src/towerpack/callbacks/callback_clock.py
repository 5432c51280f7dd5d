"""How long each callback takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from towerpack.callbacks.base import Callback
from towerpack.monitor.verdict import CallbackCost

T = TypeVar("T")


class CallbackClock:
    """Adds up the seconds of each callback, from one `lap` to the next.

    What a callback puts off by `when_settled` is on its account too, if it is called `on_account`.
    """

    def __init__(self) -> None:
        self.seconds = 0.0  # of all callbacks, over all laps
        self._costs: dict[Callback, CallbackCost] = {}
        self._running: Callback | None = None

    def call(
        self, callback: Callback, event: Callable[..., T], *arguments: Any, at_step: bool = False
    ) -> T:
        """Calls one of the callback's events; `at_step` says that it is one of single steps."""
        before, self._running = self._running, callback
        begun = time.perf_counter()
        try:
            return event(*arguments)
        finally:
            seconds = time.perf_counter() - begun
            self._running = before
            self.seconds += seconds
            cost = self._costs.get(callback, CallbackCost(0.0, 0.0))
            self._costs[callback] = CallbackCost(
                cost.seconds + seconds, cost.at_steps + (seconds if at_step else 0.0)
            )

    def on_account(self, action: Callable[[], None]) -> Callable[[], None]:
        """The action, to be called later at the cost of the callback that runs now."""
        callback = self._running
        return action if callback is None else lambda: self.call(callback, action)

    def lap(self) -> dict[Callback, CallbackCost]:
        """The costs since the last lap."""
        costs, self._costs = self._costs, {}
        return costs
