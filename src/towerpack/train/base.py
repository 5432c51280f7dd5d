"""The training loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from towerpack.callbacks import Callback, Callbacks, StopTraining
from towerpack.checkpoint import ModelLoader, SmartInit
from towerpack.core import logger
from towerpack.core.tracebacks import folds_traceback
from towerpack.input_source import InputSource
from towerpack.monitor import MonitorBase, Monitors, RunInfo
from towerpack.tower import TowerFunc, VariableStore
from towerpack.tower.context import Summary
from towerpack.tower.summary import MovingAverage
from towerpack.train.defaults import DEFAULT_CALLBACKS, DEFAULT_MONITORS
from towerpack.train.earlier_run import move_earlier_run
from towerpack.train.epoch_clock import EpochClock
from towerpack.train.interrupts import Interrupts
from towerpack.train.own_variables import adopt_attributes
from towerpack.train.resume import find_run


class Trainer:
    """The loop, its callbacks and its monitors; a subclass says what one step is (`run_step`).

    `train` is three calls that a user may also make himself: `setup_callbacks`, `initialize` and
    `main_loop`. SIGTERM and the first Ctrl-C finish the step, let callbacks save, and leave.

    Variables, Keras objects and `tf.Module`s in the attributes of a subclass belong to the run:
    `adopt_attributes` adds them to `store`, where checkpoints and hyperparameter setters find them.
    """

    is_chief = True
    cost_names: Sequence[str] = ("cost",)
    """The scalars that say how well training goes; the progress bar shows them."""

    def __init__(self) -> None:
        self.input_source = InputSource()  # empty, until a trainer that reads from one has its own
        self._tower_func: TowerFunc | None = None
        self.moving_averages: dict[str, MovingAverage] = {}
        self.store = VariableStore()
        self.monitors = Monitors([])
        self.callbacks = Callbacks([])
        self.callbacks.trainer = self
        self.epoch_num = self.global_step = 0
        self.local_step = -1
        self.steps_per_epoch = 0
        self.starting_epoch, self.max_epoch = 1, 0
        self.clock = EpochClock(self.callbacks)
        self._interrupts = Interrupts()
        self._settling: list[Callable[[], None]] = []
        self._stop: StopTraining | None = None
        self._own_callbacks: list[Callback] = []
        self._resumed = self._goes_on = self._has_run = False
        self.run_configuration: dict[str, Any] = {}

    @property
    def tower_func(self) -> TowerFunc:
        """The function that builds the model, for callbacks that trace it again."""
        if self._tower_func is None:
            raise RuntimeError(
                f"{type(self).__name__} has no tower function, so callbacks cannot fetch tensors "
                "or predict; set trainer.tower_func, or use a trainer with towers"
            )
        return self._tower_func

    @tower_func.setter
    def tower_func(self, value: TowerFunc) -> None:
        self._tower_func = value

    def run_step(self) -> None:
        """One iteration. `global_step` grows by one afterwards, unless it has grown already."""
        raise NotImplementedError(f"{type(self).__name__} must define run_step()")

    @property
    def runs_many(self) -> bool:
        """Whether `run_steps` is there; a `run_step` of the user's own runs one step at a time."""
        return False

    def run_steps(self, count: int) -> int:
        """Some of the next `count` steps, which no callback watches; how many were run."""
        raise NotImplementedError(f"{type(self).__name__} must define run_steps()")

    def wait_for_step(self) -> None:
        """Returns when the next step can run; may call `leave_if_interrupted` while it waits."""

    def train(
        self,
        callbacks: Sequence[Callback],
        monitors: Sequence[MonitorBase],
        *,
        steps_per_epoch: int,
        max_epoch: int,
        starting_epoch: int = 1,
        session_init: ModelLoader | None = None,
    ) -> None:
        self.setup_callbacks(callbacks, monitors)
        self.initialize(session_init)
        self.main_loop(steps_per_epoch, starting_epoch, max_epoch)

    @folds_traceback
    def train_with_defaults(
        self,
        _sentinel: None = None,
        callbacks: Sequence[Callback] = (),
        monitors: Sequence[MonitorBase] | None = None,
        *,
        steps_per_epoch: int | None = None,
        max_epoch: int = 99999,
        starting_epoch: int = 1,
        session_init: Any = None,
        extra_callbacks: Sequence[Callback] | None = None,
        resume: str | Path | None = None,
    ) -> None:
        """`train` with the default callbacks and monitors, and one pass over the data per epoch.

        `resume` is that of `TrainConfig`, for trainers whose step is not a tower.
        """
        if _sentinel is not None:
            raise TypeError("train_with_defaults takes its arguments by name")
        run = find_run(resume)
        if run is not None and run.is_finished(max_epoch):
            logger.info("this run is finished: epoch %d is done", max_epoch)
            return
        if steps_per_epoch is None:
            steps_per_epoch = self._steps_of_one_pass()
        extra = DEFAULT_CALLBACKS() if extra_callbacks is None else extra_callbacks
        self.train(
            [*callbacks, *extra],
            DEFAULT_MONITORS() if monitors is None else monitors,
            steps_per_epoch=steps_per_epoch,
            max_epoch=max_epoch,
            starting_epoch=starting_epoch,
            session_init=run or session_init,
        )

    @property
    def batches_per_step(self) -> int:
        """How many batches of the input source one step takes: one for each tower."""
        return 1

    def _steps_of_one_pass(self) -> int:
        """The whole steps in the data; batches that are left over begin the next epoch."""
        batches = self.input_source.size()
        if batches is None:
            raise ValueError("the length of the data is not known: pass steps_per_epoch=")
        steps, left = divmod(batches, self.batches_per_step)
        if left:
            logger.info(
                "%d batches are not a multiple of the %d batches that a step takes: an epoch has "
                "%d steps, and the data continues from one epoch to the next",
                batches,
                self.batches_per_step,
                max(steps, 1),
            )
        return max(steps, 1) if batches else 0

    def get_predictor(
        self, input_names: Sequence[str] | None, output_names: Sequence[str]
    ) -> Callable[..., list[Any]]:
        """A function from input arrays to output tensors that shares the variables in training."""
        raise NotImplementedError(f"{type(self).__name__} has no tower to predict with")

    def add_to_step(self, update: Callable[[Sequence[tuple[Any, Any]]], None]) -> None:
        """Adds `update(gradients with variables)` to every step, behind the optimizer."""
        raise NotImplementedError(f"{type(self).__name__} has no step to add to")

    def register_callback(self, callback: Callback) -> None:
        """Adds a callback that belongs to the trainer, before those that `train` is given."""
        self._own_callbacks.append(callback)

    def setup_callbacks(
        self, callbacks: Sequence[Callback], monitors: Sequence[MonitorBase]
    ) -> None:
        """Sets up the callbacks: they may trace towers and make variables here."""
        own = self.adopt_variables()
        if own:
            logger.info(
                "%s has %d variables of its own, such as %s", type(self).__name__, len(own), own[0]
            )
        self.monitors = Monitors(monitors)
        callbacks = [*self._own_callbacks, *callbacks]
        self.callbacks = Callbacks([cb for cb in callbacks if self.is_chief or not cb.chief_only])
        self.callbacks.setup_graph(self)

    def adopt_variables(self) -> list[str]:
        """Adds the variables in the trainer's attributes to the store; returns the new names."""
        return adopt_attributes(self.store, self)

    def initialize(self, session_init: ModelLoader | None = None) -> None:
        """Gives the variables their values from a checkpoint, if there is one."""
        loader = SmartInit(session_init)
        loader.load(self.store.saved())
        if loader.run_state is not None:
            self.restore(loader.run_state)

    def state(self) -> dict[str, Any]:
        """Where the run stands, apart from its variables: JSON, as a checkpoint keeps it."""
        return {
            "global_step": self.global_step,
            "epoch_num": self.epoch_num,
            "local_step": self.local_step,
            "steps_per_epoch": self.steps_per_epoch,
            "seed": self.store.seed,
            "callbacks": self.callbacks.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Takes up a run where `state` left it; between `initialize` and `main_loop`."""
        self.global_step, self.epoch_num = state["global_step"], state["epoch_num"]
        self.local_step, self.steps_per_epoch = state["local_step"], state["steps_per_epoch"]
        self.callbacks.restore(state["callbacks"])
        self._resumed = True

    def main_loop(
        self, steps_per_epoch: int, starting_epoch: int = 1, max_epoch: int = 99999
    ) -> None:
        """Runs epochs `starting_epoch` to `max_epoch`; `after_train` comes whatever happens.

        A restored run goes on in its own epoch, or in the next if that one was complete.
        """
        self.max_epoch, self._stop = max_epoch, None
        self._begin(steps_per_epoch, starting_epoch)
        self._claim_directory()
        self.monitors.open(self._run_info())
        error: BaseException | None = None
        failed = False
        try:
            with self._interrupts.catching():
                self._at_monitors()
                self.callbacks.before_train()
                self._settle()
                self.clock = EpochClock(self.callbacks, self.flow)
                while self.epoch_num < max_epoch or self._goes_on:
                    self._run_epoch()
            logger.info("training is finished after epoch %d", self.epoch_num)
        except StopTraining as reason:
            logger.info("training was stopped: %s", str(reason) or "a callback asked for it")
            error = self._interrupts.error()
        except BaseException as reason:
            error, failed = reason, True
            raise
        finally:
            self._finish(error, failed)
        if error is not None:
            raise error

    def _finish(self, error: BaseException | None, failed: bool) -> None:
        """Ends callbacks and monitors; what fails here must not replace what made the run fail."""
        try:
            try:
                self.callbacks.after_train()
            finally:
                self.monitors.close(error)
        except Exception as another:
            if not failed:
                raise
            logger.error("after the run had failed: %s: %s", type(another).__name__, another)

    def _claim_directory(self) -> None:
        """A run that neither resumes nor continues another one writes into a tidy directory."""
        directory = logger.get_logger_dir()
        continues = self._resumed or self._has_run or self.starting_epoch > 1
        self._has_run = True
        if directory and self.monitors.monitors and not continues and not logger.keeps_runs():
            move_earlier_run(Path(directory))

    def _run_info(self) -> RunInfo:
        directory = logger.get_logger_dir()
        return RunInfo(
            Path(directory) if directory else None,
            starting_epoch=self.starting_epoch,
            starting_step=self.global_step,
            resumed=self._resumed,
            steps_per_epoch=self.steps_per_epoch,
            max_epoch=self.max_epoch,
            configuration=self.configuration(),
            devices=self.device_names,
        )

    def configuration(self) -> dict[str, Any]:
        """What people want to know of this trainer when they look at the run later."""
        return {"trainer": type(self).__name__, **self.run_configuration}

    @property
    def device_names(self) -> tuple[str, ...]:
        """What towers run on, for people to read."""
        return ()

    @property
    def flow(self) -> Any:
        """The data flow behind the input, if there is one: its stages are watched."""
        return getattr(getattr(self, "input_source", None), "flow", None)

    @property
    def has_summaries(self) -> bool:
        """Whether there is anything to be had by fetching `ALL_SUMMARIES`."""
        return False

    def collected_summaries(self) -> Sequence[Summary]:
        """What the tower has written by `tf.summary` since the last call."""
        return ()

    @property
    def step_seconds(self) -> float:
        """How long this run has been in steps so far, their waiting included."""
        return self.clock.step_seconds

    @property
    def waiting_seconds(self) -> float:
        """How long steps have waited for their data so far."""
        return 0.0

    def _begin(self, steps_per_epoch: int, starting_epoch: int) -> None:
        in_the_middle = self._resumed and 0 <= self.local_step < self.steps_per_epoch - 1
        if in_the_middle and steps_per_epoch != self.steps_per_epoch:
            raise ValueError(
                f"the checkpoint was saved in the middle of an epoch of {self.steps_per_epoch} "
                f"steps; expected the same steps_per_epoch, received {steps_per_epoch}"
            )
        self.steps_per_epoch = steps_per_epoch
        if not self._resumed:
            self.epoch_num, self.local_step = starting_epoch - 1, -1
        self.starting_epoch = self.epoch_num + (0 if in_the_middle else 1)
        if not in_the_middle:
            self.local_step = -1
        self._goes_on = in_the_middle

    def _run_epoch(self) -> None:
        if not self._goes_on:
            self.epoch_num, self.local_step = self.epoch_num + 1, -1
        self._goes_on = False
        with self._stopping_when_settled():
            self.callbacks.before_epoch()
        self._settle()
        while self.local_step < self.steps_per_epoch - 1:
            self._advance()
        with self._stopping_when_settled():
            self.callbacks.after_epoch()
        with self._stopping_when_settled():
            self.callbacks.trigger_epoch()
        self.monitors.put_times(self.clock.lap(self.waiting_seconds))
        self.monitors.flush()
        self._settle()  # saving: of the next epoch's time

    def _advance(self) -> None:
        """Runs the next step by itself if a callback watches it, else as many as are free."""
        due = self.callbacks.next_due()
        free = self.steps_per_epoch - 1 - self.local_step
        if due is not None:
            free = min(free, due - self.global_step - 1)
        before, done = self.global_step, 1
        with self.clock.in_step():
            self.wait_for_step()
            if free > 0 and self.runs_many:
                done = self.run_steps(free)
                self.local_step += done
            else:
                self.local_step += 1
                # What run_step puts belongs to the step that it runs.
                self.monitors.at(self.global_step + 1, self.epoch_num)
                self.run_step()
        if self.global_step == before:
            self.global_step += done
        self._at_monitors()
        with self._stopping_when_settled():
            self.callbacks.trigger_step()
        # After an epoch's last step the events of its end come first: a run that was saved before
        # them would go on with the next epoch.
        if self.local_step < self.steps_per_epoch - 1:
            self._settle()

    def when_settled(self, action: Callable[[], None]) -> None:
        """Runs `action` once every callback has seen the current event: the moment to save."""
        self._settling.append(self.callbacks.clock.on_account(action))

    @contextlib.contextmanager
    def _stopping_when_settled(self) -> Iterator[None]:
        """A callback that stops the training does not keep what others asked for from happening."""
        try:
            yield
        except StopTraining as reason:
            self._stop = self._stop or reason

    def _settle(self) -> None:
        actions, self._settling = self._settling, []
        if actions:
            self._check_no_late_variables()
            self.monitors.persist()
        for action in actions:
            action()
        if self._stop is not None:
            self.callbacks.interrupted()  # in the middle of an epoch nobody has saved yet
            raise self._stop
        self.leave_if_interrupted()

    def _check_no_late_variables(self) -> None:
        """Before a save: a resumed run could not load a variable that its steps make later."""
        late = self.adopt_variables()
        if late:
            raise ValueError(
                f"expected {type(self).__name__} to have all variables before training, but "
                f"{late} appeared later, so a resumed run could not load them. Make them in "
                "__init__: call a model once, and optimizer.build(model.trainable_variables)"
            )

    def leave_if_interrupted(self) -> None:
        """Ends the run after Ctrl-C or SIGTERM, between two steps: callbacks may save."""
        if self._interrupts.received is not None:
            self.callbacks.interrupted()
            raise StopTraining(f"{self._interrupts.received.name} after step {self.global_step}")

    def _at_monitors(self) -> None:
        self.monitors.at(self.global_step, self.epoch_num)

    def close(self) -> None:
        """Frees what the trainer holds; called by `launch_train_with_config`."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
