"""What a callback is: everything that is not the iteration itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from towerpack.input_source import InputSource
from towerpack.monitor import Monitors
from towerpack.tower import TowerFunc, VariableStore
from towerpack.tower.context import Summary
from towerpack.tower.summary import MovingAverage


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
    def tower_func(self) -> TowerFunc:
        """The function that builds the model; raises where the trainer has none."""

    @property
    def has_summaries(self) -> bool:
        """Whether there is anything to be had by fetching `ALL_SUMMARIES`."""

    def collected_summaries(self) -> Sequence[Summary]:
        """What the tower has written by `tf.summary` since the last call."""

    @property
    def step_seconds(self) -> float:
        """How long this run has been in steps so far, their waiting included."""

    def get_predictor(
        self, input_names: Sequence[str] | None, output_names: Sequence[str]
    ) -> Callable[..., list[Any]]:
        """A function from input arrays to output tensors that shares the variables in training."""

    def add_to_step(self, update: Callable[[Sequence[tuple[Any, Any]]], None]) -> None:
        """Adds `update(gradients with variables)` to every step, behind the optimizer."""

    def when_settled(self, action: Callable[[], None]) -> None:
        """Runs `action` once every callback has seen the current event: the moment to save."""

    def state(self) -> dict[str, Any]:
        """Where the run stands, apart from its variables: JSON, as a checkpoint keeps it."""

    def configuration(self) -> dict[str, Any]:
        """What people want to know of this trainer when they look at the run later."""


class StopTraining(Exception):
    """Raised by a callback to end the training loop cleanly, after the current event."""


class Callback:
    """Override the methods with an underscore; `self.trainer` is there from `_setup_graph` on.

    Order of events: setup_graph; before_train; then for each epoch before_epoch, for each step
    before_run, the step, after_run, trigger_step; after_epoch, trigger_epoch; at last, also after
    an exception, after_train. Within an event callbacks run in the order of their list.

    `_trigger_epoch` calls `trigger()`, so a callback that acts once an epoch overrides `_trigger`.
    `_before_run` may return names of tensors; their values arrive in `_after_run`.

    Steps that no callback watches run many in one call. A callback that overrides a hook of single
    steps watches every step; one that needs only some of them overrides `_next_due` as well.
    `_state` and `_restore` keep what must survive a restart.
    """

    trainer: TrainerView
    chief_only: bool = True

    def setup_graph(self, trainer: TrainerView) -> None:
        self.trainer = trainer
        self._setup_graph()

    def before_train(self) -> None:
        self._before_train()

    def before_epoch(self) -> None:
        self._before_epoch()

    def before_run(self) -> Sequence[str] | None:
        return self._before_run()

    def after_run(self, values: list[Any] | None) -> None:
        self._after_run(values)

    def trigger_step(self) -> None:
        self._trigger_step()

    def after_epoch(self) -> None:
        self._after_epoch()

    def trigger_epoch(self) -> None:
        self._trigger_epoch()

    def trigger(self) -> None:
        self._trigger()

    def interrupted(self) -> None:
        self._interrupted()

    def after_train(self) -> None:
        self._after_train()

    def next_due(self) -> int | None:
        """The next global step that must run by itself, for this callback's step hooks to see it.

        `before_run` and `after_run` are called for due steps only. `trigger_step` comes after every
        call of the step function, which has run one step or, if nobody was due, several.
        """
        return self._next_due()

    def state(self) -> Any:
        """What a checkpoint keeps of it, as JSON; None for nothing."""
        return self._state()

    def restore(self, state: Any) -> None:
        """Puts back what `state` gave, before `before_train`."""
        self._restore(state)

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
        return self.global_step + 1 if watches_steps(self) else None

    def _state(self) -> Any: ...

    def _restore(self, state: Any) -> None: ...

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


def overrides(callback: Callback, *events: str) -> bool:
    """Whether a callback does anything at one of these events."""
    kind = type(callback)
    return any(
        getattr(kind, name) is not getattr(Callback, name)
        for event in events
        for name in (event, f"_{event}")
    )


def watches_steps(callback: Callback) -> bool:
    """Whether a callback does anything at single steps."""
    return overrides(callback, "before_run", "after_run", "trigger_step")
