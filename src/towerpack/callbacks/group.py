"""Callbacks run as one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from towerpack.callbacks.base import Callback, StopTraining, overrides, watches_steps
from towerpack.core import logger

SLOW_SECONDS = 2.0  # at the end of an epoch: less is nothing to speak of
SLOW_SHARE = 0.3  # of that, for a callback to be named


class Callbacks(Callback):
    """A list of callbacks, called in its order; each gets its `after_train`, whatever happens."""

    def __init__(self, callbacks: Sequence[Callback]):
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise TypeError(
                    f"expected callbacks, received {callback!r} ({type(callback).__name__})"
                )
        self.callbacks = list(callbacks)
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
        self._each(callback.before_epoch for callback in self.callbacks)

    @staticmethod
    def _each(calls: Iterable[Callable[[], None]]) -> None:
        """All of them; one that stops the training does so after the others have had their turn."""
        stop: StopTraining | None = None
        for call in calls:
            try:
                call()
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
        return [
            (callback, list(callback.before_run() or ()))
            for callback in self._at_run
            if callback.next_due() == coming
        ]

    def deliver(self, wanted: list[tuple[Callback, list[str]]], values: dict[str, Any]) -> None:
        self.trainer.monitors.at(self.trainer.global_step, self.trainer.epoch_num)
        for callback, names in wanted:
            callback.after_run([values[name] for name in names] if names else None)

    def _trigger_step(self) -> None:
        self._each(callback.trigger_step for callback in self._at_step)

    def _after_epoch(self) -> None:
        self._each(callback.after_epoch for callback in self.callbacks)

    def _trigger_epoch(self) -> None:
        seconds: dict[Callback, float] = {}
        self._each(_timed(callback, seconds) for callback in self.callbacks)
        total = sum(seconds.values())
        slow = [cb for cb in seconds if seconds[cb] > SLOW_SHARE * total]
        if total > SLOW_SECONDS:
            named = ", ".join(f"{callback} {seconds[callback]:.3g} s" for callback in slow)
            logger.info(
                "callbacks took %.3g s at the end of this epoch; the most: %s", total, named
            )

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


def _timed(callback: Callback, seconds: dict[Callback, float]) -> Callable[[], None]:
    """The callback's `trigger_epoch`, which notes how long it took."""

    def call() -> None:
        begun = time.perf_counter()
        try:
            callback.trigger_epoch()
        finally:
            seconds[callback] = time.perf_counter() - begun

    return call
