"""Session hooks as callbacks: those of the user's own, and the usual ones by their old names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._tensorflow import tf, v1
from towerpack.callbacks import (
    Callback,
    ModelSaver,
    PeriodicCallback,
    PeriodicTrigger,
    ProcessTensors,
    StopTraining,
    TerminateOnNaN,
    ThroughputTracker,
)
from towerpack.core import logger
from towerpack.estimator.model import LOSS


@dataclass(frozen=True)
class SessionRunArgs:
    """What a hook fetches from the next step: names of tensors, one, in a list or in a dict."""

    fetches: Any


@dataclass(frozen=True)
class SessionRunValues:
    """The values that a hook has fetched, in the structure of its `fetches`."""

    results: Any


class SessionRunContext:
    """What a hook sees of the run."""

    def __init__(self) -> None:
        self.stop_requested = False

    def request_stop(self) -> None:
        self.stop_requested = True

    @property
    def session(self) -> Any:
        raise AttributeError(
            "there is no session in TensorFlow 2: fetch tensors by their names with "
            "SessionRunArgs, or write a towerpack Callback, which has self.trainer"
        )


class SessionRunHook:
    """The base class of hooks; `tf.compat.v1.train.SessionRunHook` will do as well.

    Order of events: `begin` and `after_create_session` before training, `before_run` and
    `after_run` around each step, `end` after training that did not fail. There is no session, so
    None is passed for it and for the coordinator.
    """

    def begin(self) -> None: ...

    def after_create_session(self, session: Any, coord: Any) -> None: ...

    def before_run(self, run_context: SessionRunContext) -> Any: ...

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None: ...

    def end(self, session: Any) -> None: ...


class HookCallback(Callback):
    """Calls a session hook, in every step if it has `before_run` or `after_run`."""

    def __init__(self, hook: Any):
        self.hook = hook
        bases = (SessionRunHook, v1.train.SessionRunHook)
        found = [getattr(type(hook), name, None) for name in ("before_run", "after_run")]
        own = [getattr(base, name) for base in bases for name in ("before_run", "after_run")]
        self.observes = any(method is not None and method not in own for method in found)
        self._context = SessionRunContext()
        self._fetches: Any = None

    def _next_due(self) -> int | None:
        return self.global_step + 1 if self.observes else None

    def _before_train(self) -> None:
        self.hook.begin()
        self.hook.after_create_session(None, None)

    def _before_run(self) -> Sequence[str] | None:
        asked = self.hook.before_run(self._context)
        self._fetches = getattr(asked, "fetches", asked)
        names = list(tf.nest.flatten(self._fetches)) if self._fetches is not None else []
        for name in names:
            if not isinstance(name, str):
                raise TypeError(
                    f"expected names of tensors as fetches of {type(self.hook).__name__}, received "
                    f"{name!r}; name the tensor in the model function: tf.identity(x, name='x')"
                )
        return names

    def _after_run(self, values: list[Any] | None) -> None:
        results = None
        if self._fetches is not None:
            results = tf.nest.pack_sequence_as(self._fetches, list(values or ()))
        self.hook.after_run(self._context, SessionRunValues(results))
        if self._context.stop_requested:
            raise StopTraining(f"{type(self.hook).__name__} asked for it")

    def finish(self) -> None:
        """Called after training that did not fail."""
        self.hook.end(None)

    def __str__(self) -> str:
        return type(self.hook).__name__


class StopAtStepHook(Callback):
    """Stops after `num_steps` steps of this call of `train`, or at the global step `last_step`."""

    def __init__(self, num_steps: int | None = None, last_step: int | None = None):
        if (num_steps is None) == (last_step is None):
            raise ValueError("expected either num_steps or last_step")
        self.num_steps, self.last_step = num_steps, last_step

    def _before_train(self) -> None:
        self._last = self.last_step or self.global_step + (self.num_steps or 0)
        self._check()

    def _next_due(self) -> int | None:
        return max(self._last, self.global_step + 1)

    def _trigger_step(self) -> None:
        self._check()

    def _check(self) -> None:
        if self.global_step >= self._last:
            raise StopTraining(f"step {self._last} is reached")


class LoggingTensorHook(PeriodicCallback):
    """Logs named tensors of a step at an interval; `tensors` are names, or a dict of them by label.

    Args:
        formatter: makes the text of a dict of the values by label.
    """

    def __init__(
        self,
        tensors: Mapping[str, str] | Sequence[str],
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        formatter: Callable[[dict[str, Any]], str] | None = None,
    ):
        if (every_n_iter is None) == (every_n_secs is None):
            raise ValueError("expected either every_n_iter or every_n_secs")
        named = dict(tensors) if isinstance(tensors, Mapping) else {name: name for name in tensors}

        def show(*values: Any) -> None:
            found = dict(zip(named, values, strict=True))
            text = ", ".join(f"{label} = {value}" for label, value in found.items())
            logger.info("%s", formatter(found) if formatter else text)

        super().__init__(
            ProcessTensors(list(named.values()), show),
            every_k_steps=every_n_iter,
            every=None if every_n_secs is None else f"{every_n_secs} s",
        )


class NanTensorHook(TerminateOnNaN):
    """Raises, or with `fail_on_nan_loss=False` stops training, when a tensor is not finite.

    The trainer checks the loss of every step itself and raises `NonFiniteCost`: this is for other
    tensors.
    """

    def __init__(self, loss_tensor: str = LOSS, fail_on_nan_loss: bool = True):
        super().__init__(loss_tensor)
        self.fail = fail_on_nan_loss

    def _check(self, *values: Any) -> None:
        if self.fail:
            super()._check(*values)
        elif not all(np.isfinite(value).all() for value in values):
            raise StopTraining(f"{self.names} is not finite")


class CheckpointSaverHook(ModelSaver):
    """Saves at an interval to a directory; an Estimator already saves to its `model_dir`."""

    def __init__(
        self,
        checkpoint_dir: str | Path,
        save_secs: float | None = None,
        save_steps: int | None = None,
    ):
        if (save_secs is None) == (save_steps is None):
            raise ValueError("expected either save_secs or save_steps")
        interval = f"{save_secs} s" if save_steps is None else f"{save_steps} steps"
        super().__init__(checkpoint_dir=checkpoint_dir, every=interval)


class StepCounterHook(PeriodicTrigger):
    """Logs the steps per second, every `every_n_steps` steps."""

    def __init__(self, every_n_steps: int = 100):
        super().__init__(ThroughputTracker(), every_k_steps=every_n_steps)


OWN = {
    kind.__name__: kind
    for kind in (
        StopAtStepHook,
        LoggingTensorHook,
        NanTensorHook,
        CheckpointSaverHook,
        StepCounterHook,
    )
}


def as_callback(hook: Any) -> Callback:
    """A hook as a callback. TensorFlow's own hooks, which need a session, are refused."""
    if isinstance(hook, Callback):
        return hook
    if isinstance(hook, type):
        raise TypeError(f"expected a hook, received the class {hook.__name__}; write it with ()")
    ours = [
        kind.__name__ for kind in type(hook).__mro__ if kind.__module__.startswith("tensorflow")
    ]
    ours = [name for name in ours if name not in ("SessionRunHook", "object")]
    if ours:
        cure = f"towerpack.estimator.{ours[0]}" if ours[0] in OWN else "a towerpack Callback"
        raise TypeError(
            f"expected a hook that needs no session, received {ours[0]} of TensorFlow; use {cure}"
        )
    if not all(callable(getattr(hook, name, None)) for name in ("begin", "before_run", "end")):
        raise TypeError(f"expected a Callback or a SessionRunHook as a hook, received {hook!r}")
    return HookCallback(hook)
