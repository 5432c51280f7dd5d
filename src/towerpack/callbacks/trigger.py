"""Callbacks that change when other callbacks run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from towerpack.callbacks.base import Callback, ProxyCallback
from towerpack.callbacks.interval import earliest, interval_of, last_step
from towerpack.core.every import Every


class PeriodicTrigger(ProxyCallback):
    """Triggers a callback at an interval **instead of** after every epoch.

    Its other events are unchanged. An interval is `every_k_steps` (where the global step is a
    multiple of k), `every_k_epochs`, or `every('500 steps' | '2 epochs' | '10 min')`, also as its
    text; several may be given. `before_train=True` also triggers once before training. A step that
    is the last of its epoch triggers with the end of the epoch.

    Only the steps at which it triggers run by themselves; the others may be fused. An interval of
    time is checked between two calls of the step function and does not prevent fusion.

    >>> from towerpack.callbacks import ModelSaver
    >>> often = PeriodicTrigger(ModelSaver(checkpoint_dir="."), "10 min")
    """

    has_interval = True

    def __init__(
        self,
        triggerable: Callback,
        every_k_steps: int | str | Every | None = None,
        every_k_epochs: int | None = None,
        before_train: bool = False,
        every: str | Every | None = None,
    ):
        super().__init__(triggerable)
        self._interval = interval_of(every_k_steps, every_k_epochs, every)
        self._at_start = before_train
        if not self._interval.parts and not before_train:
            raise ValueError("expected every_k_steps, every_k_epochs, every or before_train=True")

    def _before_train(self) -> None:
        super()._before_train()
        self._interval.start(self.trainer)
        if self._at_start:
            self.cb.trigger()

    def _next_due(self) -> int | None:
        self._due = self.cb.next_due()
        return earliest(self._due, self._interval.next_step(self.global_step + 1))

    def _before_run(self) -> Sequence[str] | None:
        coming = self.global_step + 1
        # A callback that uses tensors of the step when triggered must observe that step.
        fetches = getattr(self.cb, "fetches_for_trigger", False)
        self._passed_on = self._due == coming or (fetches and self._interval.is_step(coming))
        return self.cb.before_run() if self._passed_on else None

    def _after_run(self, values: list[Any] | None) -> None:
        if self._passed_on:
            self.cb.after_run(values)

    def _trigger_step(self) -> None:
        super()._trigger_step()
        if self._interval.triggers_after_step(self.trainer):
            self.cb.trigger()

    def _trigger_epoch(self) -> None:
        if self._interval.triggers_after_epoch(self.trainer):
            self.cb.trigger()


class MaskedCallback(ProxyCallback):
    """Base of callbacks that pass on the events of epochs and steps only sometimes.

    `before_run` decides for the whole step up to `after_run`.
    """

    _run_passes = False

    def _passes(self, step: int) -> bool:
        """Whether an event of this step is passed on; in `before_run`, `step` is the coming one."""
        raise NotImplementedError

    def _before_epoch(self) -> None:
        if self._passes(self.global_step):
            super()._before_epoch()

    def _next_due(self) -> int | None:
        self._due = super()._next_due()
        return self._due

    def _before_run(self) -> Sequence[str] | None:
        coming = self.global_step + 1
        self._run_passes = self._due == coming and self._passes(coming)
        return super()._before_run() if self._run_passes else None

    def _after_run(self, values: list[Any] | None) -> None:
        if self._run_passes:
            super()._after_run(values)

    def _trigger_step(self) -> None:
        if self._passes(self.global_step):
            super()._trigger_step()

    def _after_epoch(self) -> None:
        if self._passes(self.global_step):
            super()._after_epoch()

    def _trigger_epoch(self) -> None:
        if self._passes(self.global_step):
            super()._trigger_epoch()


class PeriodicCallback(MaskedCallback):
    """Masks a callback's events of epochs and steps, except at an interval.

    It can only make events rarer. With an interval of steps, all events of the steps whose number
    is a multiple pass, and so do the events of an epoch that follow such a step. With an interval
    of epochs, everything in those epochs passes; with an interval of time, the first step, or the
    first end of an epoch, after it. The very last step of training, and the end of its epoch,
    always pass. Intervals are those of `PeriodicTrigger`.

    >>> from towerpack.callbacks import TensorPrinter
    >>> seldom = PeriodicCallback(TensorPrinter("cost"), every_k_steps=100)
    """

    has_interval = True

    def __init__(
        self,
        callback: Callback,
        every_k_steps: int | str | Every | None = None,
        every_k_epochs: int | None = None,
        every: str | Every | None = None,
    ):
        super().__init__(callback)
        self._interval = interval_of(every_k_steps, every_k_epochs, every)
        if not self._interval.parts:
            raise ValueError("expected every_k_steps, every_k_epochs or every")

    def _before_train(self) -> None:
        super()._before_train()
        self._interval.start(self.trainer)
        self._run_passes = False

    def _next_due(self) -> int | None:
        due, trainer, interval = super()._next_due(), self.trainer, self._interval
        if due is None or interval.is_epoch(trainer.epoch_num) or interval.check_time(trainer):
            return due
        last = last_step(trainer) if trainer.epoch_num == trainer.max_epoch else None
        return earliest(interval.next_step(due), last)

    def _trigger_step(self) -> None:
        super()._trigger_step()
        if self._run_passes:
            self._interval.time_is_up = self._run_passes = False

    def _after_epoch(self) -> None:
        self._interval.check_time(self.trainer)
        super()._after_epoch()

    def _trigger_epoch(self) -> None:
        super()._trigger_epoch()
        self._interval.time_is_up = False

    def _passes(self, step: int) -> bool:
        trainer = self.trainer
        is_last = trainer.local_step == trainer.steps_per_epoch - 1
        return (
            self._interval.time_is_up
            or self._interval.is_step(step)
            or self._interval.is_epoch(trainer.epoch_num)
            or (is_last and trainer.epoch_num == trainer.max_epoch)
        )


class EnableCallbackIf(MaskedCallback):
    """Masks a callback's events of epochs and steps unless `pred(self)` is true.

    `self` is this callback, with `epoch_num`, `global_step`, `local_step` and `trainer`. `pred` is
    called at each event; in `before_run` also for the `after_run` of the same step. The steps that
    the callback observes run by themselves, whatever `pred` returns.

    >>> from towerpack.callbacks import TensorPrinter
    >>> later = EnableCallbackIf(TensorPrinter("cost"), lambda self: self.epoch_num > 10)
    """

    def __init__(self, callback: Callback, pred: Callable[[EnableCallbackIf], bool]):
        super().__init__(callback)
        self.pred = pred

    def _passes(self, step: int) -> bool:
        return bool(self.pred(self))
