"""Callbacks run as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from towerpack.callbacks.base import Callback, StopTraining, overrides, watches_steps
from towerpack.callbacks.callback_clock import CallbackClock
from towerpack.core import logger
from towerpack.monitor.verdict import CallbackCost

SLOW_SECONDS = 2.0  # in an epoch: less is nothing to speak of
SLOW_SHARE = 0.3  # of that, for a callback to be named


def _described(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}; write {value.__name__}()"
    return f"{value!r} ({type(value).__name__})"


class Callbacks(Callback):
    """A list of callbacks, called in its order; each gets its `after_train`, whatever happens."""

    def __init__(self, callbacks: Sequence[Callback]):
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise TypeError(f"expected callbacks, received {_described(callback)}")
        self.callbacks = list(callbacks)
        self.clock = CallbackClock()
        # Only those that look at single steps are asked in each of them.
        self._watching = [cb for cb in self.callbacks if watches_steps(cb)]
        self._at_run = [cb for cb in self.callbacks if overrides(cb, "before_run", "after_run")]
        self._at_step = [cb for cb in self.callbacks if overrides(cb, "trigger_step")]

    def _setup_graph(self) -> None:
        for callback in self.callbacks:
            callback.setup_graph(self.trainer)

    def _before_train(self) -> None:
        for callback in self.callbacks:
            callback.before_train()

    def _before_epoch(self) -> None:
        self._each("before_epoch", self.callbacks)

    def _each(self, event: str, callbacks: Sequence[Callback], at_step: bool = False) -> None:
        """All of them; one that stops the training does so after the others have had their turn."""
        stop: StopTraining | None = None
        for callback in callbacks:
            try:
                self.clock.call(callback, getattr(callback, event), at_step=at_step)
            except StopTraining as reason:
                stop = stop or reason
        if stop is not None:
            raise stop

    def _next_due(self) -> int | None:
        due = [callback.next_due() for callback in self._watching]
        return min((step for step in due if step is not None), default=None)

    def fetches(self) -> list[tuple[Callback, list[str]]]:
        """What each callback that is due wants of the coming step."""
        coming = self.trainer.global_step + 1
        wanted = []
        for callback in self._at_run:
            if callback.next_due() == coming:
                names = self.clock.call(callback, callback.before_run, at_step=True)
                wanted.append((callback, list(names or ())))
        return wanted

    def deliver(self, wanted: list[tuple[Callback, list[str]]], values: dict[str, Any]) -> None:
        self.trainer.monitors.at(self.trainer.global_step, self.trainer.epoch_num)
        for callback, names in wanted:
            its = [values[name] for name in names] if names else None
            self.clock.call(callback, callback.after_run, its, at_step=True)

    def _trigger_step(self) -> None:
        self._each("trigger_step", self._at_step, at_step=True)

    def _after_epoch(self) -> None:
        self._each("after_epoch", self.callbacks)

    def _trigger_epoch(self) -> None:
        self._each("trigger_epoch", self.callbacks)

    def lap(self) -> dict[str, CallbackCost]:
        """What each has cost since the last lap, by name; the slow ones are logged."""
        laps = self.clock.lap()
        costs = {name: laps[cb] for name, cb in self._by_name().items() if cb in laps}
        total = sum(cost.seconds for cost in costs.values())
        if total > SLOW_SECONDS:
            slow = [name for name in costs if costs[name].seconds > SLOW_SHARE * total]
            named = ", ".join(f"{name} {costs[name].seconds:.3g} s" for name in slow)
            logger.info("callbacks took %.3g s of this epoch; the most: %s", total, named)
        return costs

    def _interrupted(self) -> None:
        for callback in self.callbacks:
            callback.interrupted()

    def _after_train(self) -> None:
        failure: Exception | None = None
        for callback in self.callbacks:
            try:
                callback.after_train()
            except Exception as error:  # noqa: BLE001 (raised below, after the others)
                logger.exception("%s failed in after_train", callback)
                failure = failure or error
        if failure:
            raise failure

    def _state(self) -> dict[str, Any]:
        return {
            name: state for name, cb in self._by_name().items() if (state := cb.state()) is not None
        }

    def _restore(self, state: dict[str, Any]) -> None:
        """Gives each callback its own; states of callbacks that are gone are named and dropped."""
        known = self._by_name()
        for name, value in state.items():
            if name in known:
                known[name].restore(value)
        gone = sorted(set(state) - set(known))
        if gone:
            logger.warning("the checkpoint has the state of %s, which this run does not use", gone)

    def _by_name(self) -> dict[str, Callback]:
        """Callbacks by class and number, so that another order of different ones is no matter."""
        named: dict[str, Callback] = {}
        for callback in self.callbacks:
            base, number = str(callback), 1
            name = base
            while name in named:
                number += 1
                name = f"{base} {number}"
            named[name] = callback
        return named
