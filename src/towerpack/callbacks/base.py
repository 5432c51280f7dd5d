"""The base classes of callbacks, and what a callback sees of its trainer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np

from towerpack.core import logger
from towerpack.input_source import InputSource
from towerpack.monitor import Monitors
from towerpack.tower import TowerFunc, VariableStore
from towerpack.tower.context import Summary
from towerpack.tower.summary import MovingAverage

P = ParamSpec("P")
T = TypeVar("T")


class RanksView(Protocol):
    """What callbacks see of the processes that train together.

    What a callback calls here, except `now`, it must call on all ranks, in the same order; `what`
    names the reason in errors.
    """

    @property
    def rank(self) -> int:
        """The number of this process."""

    @property
    def size(self) -> int:
        """How many there are; 1 for a run on one machine."""

    @property
    def is_chief(self) -> bool:
        """Whether this is the first, which logs and saves."""

    def now(self) -> float:
        """A time in seconds that is the same on all ranks: they act together at an interval."""

    def gather(self, value: bytes, what: str = "") -> list[bytes]:
        """The values of all ranks, in their order."""

    def from_chief(self, value: Any, what: str = "") -> Any:
        """The chief's value, which is JSON."""

    def copy_from_chief(self, variables: Mapping[str, Any]) -> list[str]:
        """Gives the variables the chief's values, bit for bit; returns the names of those changed.

        They are the same on all ranks, in the same order.
        """


class TrainerView(Protocol):
    """What callbacks see of a trainer."""

    monitors: Monitors
    store: VariableStore
    cost_names: Sequence[str]
    input_source: InputSource
    moving_averages: dict[str, MovingAverage]
    is_chief: bool
    epoch_num: int
    global_step: int
    local_step: int
    steps_per_epoch: int
    starting_epoch: int
    max_epoch: int

    @property
    def ranks(self) -> RanksView:
        """The processes that train together."""

    @property
    def tower_func(self) -> TowerFunc:
        """The function that builds the model; raises if the trainer has none."""

    @property
    def has_summaries(self) -> bool:
        """Whether fetching `ALL_SUMMARIES` would return anything."""

    def collected_summaries(self) -> Sequence[Summary]:
        """What the tower has written by `tf.summary` since the last call."""

    @property
    def step_seconds(self) -> float:
        """The seconds that this run has spent in steps so far, including the wait for data."""

    def get_predictor(
        self, input_names: Sequence[str] | None, output_names: Sequence[str]
    ) -> Callable[..., list[Any]]:
        """A function from input arrays to output tensors that shares the variables in training."""

    def add_to_step(self, update: Callable[[Sequence[tuple[Any, Any]]], None]) -> None:
        """Adds `update(gradients with variables)` to every step, after the optimizer."""

    def when_settled(self, action: Callable[[], None]) -> None:
        """Runs `action` after every callback has handled the current event: the moment to save."""

    def state(self) -> dict[str, Any]:
        """The state of the run apart from its variables, as JSON: what a checkpoint stores."""

    def configuration(self) -> dict[str, Any]:
        """The facts about this trainer that help a reader of the run later."""


class StopTraining(Exception):
    """Raised by a callback to end the training loop cleanly, after the current event."""


def _public(hook: Callable[P, T]) -> Callable[P, T]:
    """The public form of a hook: calls it as the subclass has overridden it."""
    name = hook.__name__

    @functools.wraps(hook)
    def call(self: Any, *arguments: Any) -> Any:
        return getattr(self, name)(*arguments)

    return call  # type: ignore[return-value]


class Callback:
    """Override the methods with an underscore; `self.trainer` is set from `_setup_graph` on.

    Order of events: setup_graph; before_train; then for each epoch before_epoch, for each step
    before_run, the step, after_run, trigger_step; after_epoch, trigger_epoch; finally, also after
    an exception, after_train. Within an event, callbacks run in the order of their list.

    `_trigger_epoch` calls `trigger()`, so a callback that acts once an epoch overrides `_trigger`.
    `_before_run` may return names of tensors; their values are passed to `_after_run`.

    Steps that no callback observes run many in one call. A callback that overrides a hook of single
    steps observes every step; one that needs only some of them overrides `_next_due` as well.
    `_state` and `_restore` keep what must survive a restart.

    Of several ranks that train together only the chief has the callback, unless `chief_only` is
    False: one that changes what the others use in a step, such as variables, belongs on all ranks.

    Trainers and other callbacks call each hook by its name without the underscore.
    """

    trainer: TrainerView
    chief_only: bool = True

    def _setup_graph(self) -> None: ...

    def _before_train(self) -> None: ...

    def _before_epoch(self) -> None: ...

    def _before_run(self) -> Sequence[str] | None: ...

    def _after_run(self, values: list[Any] | None) -> None: ...

    def _trigger_step(self) -> None: ...

    def _after_epoch(self) -> None: ...

    def _trigger_epoch(self) -> None:
        self.trigger()

    def _trigger(self) -> None: ...

    def _interrupted(self) -> None:
        """Training ends early (Ctrl-C, SIGTERM, `StopTraining`): the last chance to save."""

    def _after_train(self) -> None: ...

    def _next_due(self) -> int | None:
        """The next global step that must run by itself, so that the step hooks observe it.

        `before_run` and `after_run` are called for due steps only. `trigger_step` follows every
        call of the step function, which has run one step or, if no callback was due, several.
        """
        return self.trainer.global_step + 1 if observes_steps(self) else None

    def _state(self) -> Any:
        """What a checkpoint stores for this callback, as JSON; None for nothing."""

    def _restore(self, state: Any) -> None:
        """Restores what `_state` returned. Called before `before_train`."""

    def setup_graph(self, trainer: TrainerView) -> None:
        self.trainer = trainer
        self._setup_graph()

    before_train = _public(_before_train)
    before_epoch = _public(_before_epoch)
    before_run = _public(_before_run)
    after_run = _public(_after_run)
    trigger_step = _public(_trigger_step)
    after_epoch = _public(_after_epoch)
    trigger_epoch = _public(_trigger_epoch)
    trigger = _public(_trigger)
    interrupted = _public(_interrupted)
    after_train = _public(_after_train)
    next_due = _public(_next_due)
    state = _public(_state)
    restore = _public(_restore)

    @property
    def epoch_num(self) -> int:
        return self.trainer.epoch_num

    @property
    def global_step(self) -> int:
        return self.trainer.global_step

    @property
    def local_step(self) -> int:
        return self.trainer.local_step

    def set_chief_only(self, value: bool = True) -> Callback:
        self.chief_only = value
        return self

    def __str__(self) -> str:
        return type(self).__name__


def _forwarded(hook: Callable[P, T]) -> Callable[P, T]:
    """A hook that calls the same hook of the wrapped callback."""
    name = hook.__name__.removeprefix("_")

    @functools.wraps(hook)
    def call(self: Any, *arguments: Any) -> Any:
        return getattr(self.cb, name)(*arguments)

    return call  # type: ignore[return-value]


class ProxyCallback(Callback):
    """Passes every event to another callback: the base class of callbacks that change some of them.

    It observes the steps that the other one observes, and no more. Its state is the other's state.
    """

    def __init__(self, cb: Callback):
        if not isinstance(cb, Callback):
            raise TypeError(f"expected a callback, received {cb!r} ({type(cb).__name__})")
        self.cb = cb
        self.chief_only = cb.chief_only

    def _setup_graph(self) -> None:
        self.cb.setup_graph(self.trainer)

    _before_train = _forwarded(Callback._before_train)
    _before_epoch = _forwarded(Callback._before_epoch)
    _before_run = _forwarded(Callback._before_run)
    _after_run = _forwarded(Callback._after_run)
    _trigger_step = _forwarded(Callback._trigger_step)
    _after_epoch = _forwarded(Callback._after_epoch)
    _trigger_epoch = _forwarded(Callback._trigger_epoch)
    _trigger = _forwarded(Callback._trigger)
    _interrupted = _forwarded(Callback._interrupted)
    _after_train = _forwarded(Callback._after_train)
    _next_due = _forwarded(Callback._next_due)
    _state = _forwarded(Callback._state)
    _restore = _forwarded(Callback._restore)

    def set_chief_only(self, value: bool = True) -> Callback:
        self.cb.set_chief_only(value)
        return super().set_chief_only(value)

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.cb})"


class CallbackFactory(Callback):
    """A callback made of functions, each of which receives the callback itself.

    >>> shout = CallbackFactory(trigger=lambda self: print("epoch", self.epoch_num))
    """

    def __init__(
        self,
        setup_graph: Callable[[Callback], None] | None = None,
        before_train: Callable[[Callback], None] | None = None,
        trigger: Callable[[Callback], None] | None = None,
        after_train: Callable[[Callback], None] | None = None,
    ):
        hooks = {
            "_setup_graph": setup_graph,
            "_before_train": before_train,
            "_trigger": trigger,
            "_after_train": after_train,
        }
        for name, function in hooks.items():
            if function is not None:
                setattr(self, name, functools.partial(function, self))


def overrides(callback: Callback, *events: str) -> bool:
    """Whether a callback does anything at one of these events."""
    kind = type(callback)
    return any(
        getattr(kind, name) is not getattr(Callback, name)
        for event in events
        for name in (event, f"_{event}")
    )


def observes_steps(callback: Callback) -> bool:
    """Whether a callback does anything at single steps."""
    return overrides(callback, "before_run", "after_run", "trigger_step")


def name_list(names: str | Sequence[str]) -> list[str]:
    """The names as a list; a string is one name."""
    return [names] if isinstance(names, str) else list(names)


def scalars(owner: object, names: Sequence[str], values: Sequence[Any] | None) -> list[float]:
    """The values of these tensors as numbers; raises if one of them is not a scalar."""
    for name, value in zip(names, values or (), strict=True):
        if np.ndim(value):
            kind = type(owner).__name__
            raise ValueError(f"{kind} expects scalars, but {name!r} has shape {np.shape(value)}")
    return [float(value) for value in values or ()]


def latest_scalar(callback: Callback, name: str) -> tuple[int, float] | None:
    """The step and the value last logged as `name`; None, with a warning, if there is no value."""
    try:
        return callback.trainer.monitors.get_history(name)[-1]
    except KeyError as error:
        logger.warning("%s: %s", callback, error.args[0])
        return None


def run_directory(callback: Callback) -> Path:
    """The directory of the run, which a callback writes to."""
    directory = logger.get_logger_dir()
    if directory is None:
        raise ValueError(f"{callback} needs a directory: call logger.set_logger_dir(...) first")
    return Path(directory)
