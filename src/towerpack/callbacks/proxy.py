"""Callbacks that stand for others, or are made of functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from towerpack.callbacks.base import Callback


class ProxyCallback(Callback):
    """Passes every event on to another callback: base class of what changes some of them.

    It watches the steps that the other watches, and no more; the other's state is its own.
    """

    def __init__(self, cb: Callback):
        if not isinstance(cb, Callback):
            raise TypeError(f"expected a callback, received {cb!r} ({type(cb).__name__})")
        self.cb = cb
        self.chief_only = cb.chief_only

    def _setup_graph(self) -> None:
        self.cb.setup_graph(self.trainer)

    def _before_train(self) -> None:
        self.cb.before_train()

    def _before_epoch(self) -> None:
        self.cb.before_epoch()

    def _next_due(self) -> int | None:
        return self.cb.next_due()

    def _before_run(self) -> Sequence[str] | None:
        return self.cb.before_run()

    def _after_run(self, values: list[Any] | None) -> None:
        self.cb.after_run(values)

    def _trigger_step(self) -> None:
        self.cb.trigger_step()

    def _after_epoch(self) -> None:
        self.cb.after_epoch()

    def _trigger_epoch(self) -> None:
        self.cb.trigger_epoch()

    def _trigger(self) -> None:
        self.cb.trigger()

    def _interrupted(self) -> None:
        self.cb.interrupted()

    def _after_train(self) -> None:
        self.cb.after_train()

    def _state(self) -> Any:
        return self.cb.state()

    def _restore(self, state: Any) -> None:
        self.cb.restore(state)

    def set_chief_only(self, value: bool = True) -> Callback:
        self.cb.set_chief_only(value)
        return super().set_chief_only(value)

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.cb})"


class CallbackFactory(Callback):
    """A callback made of functions, each of which gets the callback itself.

    >>> shout = CallbackFactory(trigger=lambda self: print("epoch", self.epoch_num))
    """

    def __init__(
        self,
        setup_graph: Callable[[Callback], None] | None = None,
        before_train: Callable[[Callback], None] | None = None,
        trigger: Callable[[Callback], None] | None = None,
        after_train: Callable[[Callback], None] | None = None,
    ):
        self._functions = {
            "setup_graph": setup_graph,
            "before_train": before_train,
            "trigger": trigger,
            "after_train": after_train,
        }

    def _call(self, event: str) -> None:
        function = self._functions[event]
        if function is not None:
            function(self)

    def _setup_graph(self) -> None:
        self._call("setup_graph")

    def _before_train(self) -> None:
        self._call("before_train")

    def _trigger(self) -> None:
        self._call("trigger")

    def _after_train(self) -> None:
        self._call("after_train")
