"""A list of callbacks that acts as one, and the time that each of them takes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from towerpack.callbacks.base import Callback, StopTraining, observes_steps, overrides
from towerpack.core import logger
from towerpack.core.cluster import progress
from towerpack.monitor import CallbackCost

T = TypeVar("T")
SLOW_SECONDS = 2.0  # of all callbacks in an epoch; shorter times are not logged
SLOW_SHARE = 0.3  # of that time; callbacks that take more are logged by name


def _check_callback(callback: object) -> None:
    if not isinstance(callback, Callback):
        name = callback.__name__ if isinstance(callback, type) else ""
        found = f"the class {name}; write {name}()" if name else repr(callback)
        raise TypeError(f"expected callbacks, received {found}")


class Callbacks(Callback):
    """Calls several callbacks in order. Each gets its `after_train`, even if another one fails.

    Where `is_chief` is False, those that are for the chief only are left out.
    """

    def __init__(self, callbacks: Sequence[Callback], is_chief: bool = True):
        for callback in callbacks:
            _check_callback(callback)
        self._names = _by_name(callbacks)  # of all, so that their states have the same names
        self.callbacks = [cb for cb in callbacks if is_chief or not cb.chief_only]
        self.clock = CallbackClock()
        # Only callbacks that observe single steps are called at each of them.
        self._observing = [cb for cb in self.callbacks if observes_steps(cb)]
        self._at_run = [cb for cb in self.callbacks if overrides(cb, "before_run", "after_run")]
        self._at_step = [cb for cb in self.callbacks if overrides(cb, "trigger_step")]
        self._due: dict[Callback, int] = {}  # what `next_due` has found
        self._due_after = -1  # the global step at which it did

    def _setup_graph(self) -> None:
        for callback in self.callbacks:
            callback.setup_graph(self.trainer)

    def _before_train(self) -> None:
        for callback in self.callbacks:
            callback.before_train()

    def _before_epoch(self) -> None:
        self._each("before_epoch", self.callbacks)

    def _each(self, event: str, callbacks: Sequence[Callback], at_step: bool = False) -> None:
        """Calls all of them. A `StopTraining` is raised after the last one has been called."""
        stop: StopTraining | None = None
        for callback in callbacks:
            try:
                self.clock.call(callback, getattr(callback, event), at_step=at_step)
            except StopTraining as reason:
                stop = stop or reason
            if not at_step:
                progress.keep_alive()  # each of them may take minutes
        if stop is not None:
            raise stop

    def _next_due(self) -> int | None:
        self._due_after = self.global_step
        due = {callback: callback.next_due() for callback in self._observing}
        self._due = {callback: step for callback, step in due.items() if step is not None}
        return min(self._due.values(), default=None)

    def fetches(self) -> list[tuple[Callback, list[str]]]:
        """The callbacks that observe the coming step, with the names of the tensors they need."""
        if self._due_after != self.global_step:  # a `run_step` of the user's own runs several
            self._next_due()
        wanted = []
        for callback in self._at_run:
            if self._due.get(callback) == self.global_step + 1:
                names = self.clock.call(callback, callback.before_run, at_step=True)
                wanted.append((callback, list(names or ())))
        return wanted

    def deliver(self, wanted: list[tuple[Callback, list[str]]], values: dict[str, Any]) -> None:
        """Passes the values of a step to the callbacks that requested them."""
        self.trainer.monitors.at(self.trainer.global_step, self.trainer.epoch_num)
        for callback, names in wanted:
            requested = [values[name] for name in names] if names else None
            self.clock.call(callback, callback.after_run, requested, at_step=True)

    def _trigger_step(self) -> None:
        self._each("trigger_step", self._at_step, at_step=True)

    def _after_epoch(self) -> None:
        self._each("after_epoch", self.callbacks)

    def _trigger_epoch(self) -> None:
        self._each("trigger_epoch", self.callbacks)

    def lap(self) -> dict[str, CallbackCost]:
        """The cost of each callback since the last lap, by name. Slow callbacks are logged."""
        laps = self.clock.lap()
        costs = {name: laps[cb] for name, cb in self._by_name().items() if cb in laps}
        total = sum(cost.seconds for cost in costs.values())
        if total > SLOW_SECONDS:
            slow = [name for name in costs if costs[name].seconds > SLOW_SHARE * total]
            named = ", ".join(f"{name} {costs[name].seconds:.3g} s" for name in slow)
            logger.info("callbacks took %.3g s of this epoch; the slowest: %s", total, named)
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
        """Restores each callback. States of callbacks that this run does not use are dropped."""
        known = self._by_name()
        for name, value in state.items():
            if name in known:
                known[name].restore(value)
        gone = sorted(set(state) - set(self._names))
        if gone:
            logger.warning("the checkpoint has states of callbacks that are not used: %s", gone)

    def _by_name(self) -> dict[str, Callback]:
        used = set(map(id, self.callbacks))
        return {name: callback for name, callback in self._names.items() if id(callback) in used}


def _by_name(callbacks: Sequence[Callback]) -> dict[str, Callback]:
    """Callbacks by class and number, so that the order of different classes does not matter."""
    named: dict[str, Callback] = {}
    counts: Counter[str] = Counter()
    for callback in callbacks:
        name = str(callback)
        counts[name] += 1
        named[f"{name} {counts[name]}" if counts[name] > 1 else name] = callback
    return named


class CallbackClock:
    """Adds up the seconds of each callback, from one `lap` to the next.

    The time of an action that a callback defers by `when_settled` counts for that callback too, if
    the action was wrapped by `on_account`.
    """

    def __init__(self) -> None:
        self.seconds = 0.0  # of all callbacks, over all laps
        self._costs: dict[Callback, CallbackCost] = {}
        self._running: Callback | None = None

    def call(
        self, callback: Callback, event: Callable[..., T], *arguments: Any, at_step: bool = False
    ) -> T:
        """Calls one of the callback's events; `at_step` marks an event of single steps."""
        before, self._running = self._running, callback
        begun = time.perf_counter()
        try:
            return event(*arguments)
        finally:
            seconds = time.perf_counter() - begun
            self._running = before
            self.seconds += seconds
            cost = self._costs.get(callback, CallbackCost(0.0))
            self._costs[callback] = CallbackCost(
                cost.seconds + seconds,
                cost.at_steps + (seconds if at_step else 0.0),
                getattr(callback, "has_interval", False),
            )

    def on_account(self, action: Callable[[], None]) -> Callable[[], None]:
        """Wraps an action so that its time counts for the callback that runs now."""
        callback = self._running
        return action if callback is None else lambda: self.call(callback, action)

    def lap(self) -> dict[Callback, CallbackCost]:
        """The costs since the last lap."""
        costs, self._costs = self._costs, {}
        return costs
