"""Callbacks run as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from towerpack.callbacks.base import Callback
from towerpack.core import logger


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
        self._at_run = [cb for cb in self.callbacks if _overrides(cb, "before_run", "after_run")]
        self._at_step = [cb for cb in self.callbacks if _overrides(cb, "trigger_step")]

    def _setup_graph(self) -> None:
        for callback in self.callbacks:
            callback.setup_graph(self.trainer)

    def _before_train(self) -> None:
        for callback in self.callbacks:
            callback.before_train()

    def _before_epoch(self) -> None:
        for callback in self.callbacks:
            callback.before_epoch()

    def fetches(self) -> list[tuple[Callback, list[str]]]:
        """What each callback wants of the coming step."""
        return [(callback, list(callback.before_run() or ())) for callback in self._at_run]

    def deliver(self, wanted: list[tuple[Callback, list[str]]], values: dict[str, Any]) -> None:
        for callback, names in wanted:
            callback.after_run([values[name] for name in names] if names else None)

    def _trigger_step(self) -> None:
        for callback in self._at_step:
            callback.trigger_step()

    def _after_epoch(self) -> None:
        for callback in self.callbacks:
            callback.after_epoch()

    def _trigger_epoch(self) -> None:
        for callback in self.callbacks:
            callback.trigger_epoch()

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


def _overrides(callback: Callback, *events: str) -> bool:
    kind = type(callback)
    return any(
        getattr(kind, name) is not getattr(Callback, name)
        for event in events
        for name in (event, f"_{event}")
    )
