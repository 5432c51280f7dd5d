"""The training loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from towerpack.callbacks import (
    Callback,
    Callbacks,
    GraphSummary,
    MergeAllSummaries,
    ModelSummary,
    MovingAverageSummary,
    ProgressBar,
    StopTraining,
)
from towerpack.checkpoint import ModelLoader, SmartInit
from towerpack.core import logger
from towerpack.core.cluster import is_chief, progress
from towerpack.core.tracebacks import folds_traceback
from towerpack.input_source import InputSource
from towerpack.monitor import (
    JSONWriter,
    MonitorBase,
    Monitors,
    RunInfo,
    RunRecord,
    ScalarPrinter,
    TFEventWriter,
)
from towerpack.tower import TowerFunc, VariableStore
from towerpack.tower.context import Summary
from towerpack.tower.summary import MovingAverage
from towerpack.train.epoch_clock import EpochClock
from towerpack.train.interrupts import StopRequest
from towerpack.train.own_variables import adopt_attributes
from towerpack.train.ranks import OneRank, check_not_alone
from towerpack.train.resume import ResumedRun, find_run, job
from towerpack.train.run_directory import move_earlier_run


def DEFAULT_CALLBACKS() -> list[Callback]:
    """The callbacks that every run gets unless `extra_callbacks` says otherwise."""
    averages, summaries = MovingAverageSummary(), MergeAllSummaries()
    return [averages, ProgressBar(), summaries, GraphSummary(), ModelSummary()]


def DEFAULT_MONITORS() -> list[MonitorBase]:
    """The monitors that every run gets unless `monitors` says otherwise."""
    return [TFEventWriter(), JSONWriter(), ScalarPrinter(), RunRecord()]


NAMED_WEIGHTS = 5  # in a warning; often all differ


class Closing:
    """Is closed at the end of a `with` block."""

    def close(self) -> None:
        """Frees what the trainer holds; called by `launch_train_with_config`."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Trainer(Closing):
    """The loop, its callbacks and its monitors; a subclass defines one step (`run_step`).

    `train` is three calls, which a user may also make separately: `setup_callbacks`, `initialize`
    and `main_loop`. SIGTERM and the first Ctrl-C finish the step, let callbacks save, and leave.

    Variables, Keras objects and `tf.Module`s in the attributes of a subclass belong to the run:
    they are added to `store`, where checkpoints and hyperparameter setters find them.
    """

    ranks = OneRank()
    """The processes that train together."""

    cost_names: Sequence[str] = ("cost",)
    """The scalars that show how well training works; the progress bar displays them."""

    batches_per_step = 1
    """How many batches one step uses: one for each tower of all ranks."""

    device_names: tuple[str, ...] = ()
    """The devices of the towers, for people to read."""

    runs_many = False
    """Whether `run_steps` is defined; a `run_step` of the user runs one step at a time."""

    trains = True
    """Whether its steps change variables, so that several ranks must train together."""

    uses_servers = False
    """Whether it trains on the workers of a cluster with parameter servers."""

    adopts_attributes = True
    """Whether variables are found in attributes."""

    is_chief: bool = True
    """Whether this process logs and saves; of several ranks only the first does."""

    def __init__(self) -> None:
        self.is_chief = self.is_chief and is_chief()
        self.input_source = InputSource()  # without data, until a trainer sets its own
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
        self.stop_request = StopRequest()
        self._deferred: list[Callable[[], None]] = []
        self._own_callbacks: list[Callback] = []
        self._resumed = self._within_epoch = self._has_run = False
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

    def run_steps(self, count: int) -> int:
        """Runs some of the next `count` steps, which no callback observes; returns how many."""
        raise NotImplementedError(f"{type(self).__name__} must define run_steps()")

    def wait_for_step(self, free: int) -> int:
        """Waits until the next step can run, while no callback of this rank observes `free` steps.

        Returns how many steps no callback of any rank observes. Raises `StopTraining` if training
        ends here.
        """
        return free

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
        """`train` with the default callbacks and monitors; an epoch uses the data once.

        `resume` is that of `TrainConfig`, for trainers whose step is not a tower.
        """
        if _sentinel is not None:
            raise TypeError("train_with_defaults takes its arguments by name")
        run = session_init if isinstance(session_init, ResumedRun) else find_run(resume)
        if self.ranks.from_chief(run is not None and run.is_finished(max_epoch)):
            logger.info("this run is finished: epoch %d is done", max_epoch)
            return
        if steps_per_epoch is None:
            steps_per_epoch = steps_of_data(self.input_source, self.batches_per_step)
        extra = DEFAULT_CALLBACKS() if extra_callbacks is None else extra_callbacks
        self.train(
            [*callbacks, *extra],
            DEFAULT_MONITORS() if monitors is None else monitors,
            steps_per_epoch=steps_per_epoch,
            max_epoch=max_epoch,
            starting_epoch=starting_epoch,
            session_init=run or session_init,
        )

    def get_predictor(
        self, input_names: Sequence[str] | None, output_names: Sequence[str]
    ) -> Callable[..., list[Any]]:
        """A function from input arrays to output tensors that shares the variables in training."""
        raise NotImplementedError(f"{type(self).__name__} has no tower to predict with")

    def add_to_step(self, update: Callable[[Sequence[tuple[Any, Any]]], None]) -> None:
        """Adds `update(gradients with variables)` to every step, after the optimizer."""
        raise NotImplementedError(f"{type(self).__name__} has no step to add to")

    def register_callback(self, callback: Callback) -> None:
        """Adds a callback that belongs to the trainer, before those that are passed to `train`."""
        self._own_callbacks.append(callback)

    def setup_callbacks(
        self, callbacks: Sequence[Callback], monitors: Sequence[MonitorBase]
    ) -> None:
        """Sets up the callbacks: they may trace towers and make variables here."""
        own = adopt_attributes(self.store, self) if self.adopts_attributes else []
        if own:
            logger.info(
                "%s has %d variables of its own, such as %s", type(self).__name__, len(own), own[0]
            )
        self.monitors = Monitors(monitors if self.is_chief else [])
        self.callbacks = Callbacks([*self._own_callbacks, *callbacks], self.is_chief)
        self.callbacks.setup_graph(self)

    def initialize(self, session_init: ModelLoader | None = None) -> None:
        """Gives the variables their values from a checkpoint, if there is one."""
        state = None
        if self.is_chief:
            loader = SmartInit(session_init)
            loader.load(self.store.saved())
            state = loader.run_state
        self.ranks.copy_from_chief(self.store.saved())
        state = self.ranks.from_chief(state)
        if state is not None:
            self.restore(state)

    def state(self) -> dict[str, Any]:
        """The state of the run apart from its variables: JSON, as a checkpoint stores it."""
        return {
            "global_step": self.global_step,
            "epoch_num": self.epoch_num,
            "local_step": self.local_step,
            "steps_per_epoch": self.steps_per_epoch,
            "seed": self.store.seed,
            "job": job(),
            "callbacks": self.callbacks.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues a run from `state`; called between `initialize` and `main_loop`."""
        self.global_step, self.epoch_num = state["global_step"], state["epoch_num"]
        self.local_step, self.steps_per_epoch = state["local_step"], state["steps_per_epoch"]
        self.callbacks.restore(state["callbacks"])
        self._resumed = True

    def main_loop(
        self, steps_per_epoch: int, starting_epoch: int = 1, max_epoch: int = 99999
    ) -> None:
        """Runs epochs `starting_epoch` to `max_epoch`; `after_train` comes whatever happens.

        A restored run continues in its own epoch, or in the next if that one was complete.
        """
        check_not_alone(self)
        self._begin(steps_per_epoch, self.ranks.from_chief(starting_epoch), max_epoch)
        self.ranks.check_same(
            {
                "steps_per_epoch": steps_per_epoch,
                "max_epoch": max_epoch,
                "the epoch to begin with": self.starting_epoch,
                "the step to begin with": self.global_step,
            }
        )
        self.monitors.open(run_info(self))
        callbacks, error, failed = self.callbacks, None, False
        event = self.stop_request.recording
        try:
            with self.stop_request.catching_signals():
                self.monitors.at(self.global_step, self.epoch_num)
                event(callbacks.before_train)
                stopped = self.ranks.agree(bool(self.stop_request.reason), what="the start")
                if stopped.any():
                    raise StopTraining(self.stop_request.reason or "a callback asked for it")
                self._settle()
                flow = getattr(self.input_source, "own_flow", None)
                self.clock = EpochClock(callbacks, flow, self.ranks)
                while self.epoch_num < max_epoch or self._within_epoch:
                    if not self._within_epoch:
                        self.epoch_num, self.local_step = self.epoch_num + 1, -1
                    self._within_epoch = False
                    event(callbacks.before_epoch)
                    self._settle()
                    self.follow_chief()
                    while (left := steps_per_epoch - 1 - self.local_step) > 0:
                        # A step that a callback observes runs by itself.
                        due, before = callbacks.next_due(), self.global_step
                        free = left if due is None else min(left, due - before - 1)
                        with self.clock.in_step():
                            free = self.wait_for_step(free)
                            if free > 0 and self.runs_many:
                                done = self.run_steps(free)
                                self.local_step += done
                            else:
                                done, self.local_step = 1, self.local_step + 1
                                # What run_step puts belongs to the step that it runs.
                                self.monitors.at(before + 1, self.epoch_num)
                                self.run_step()
                        if self.global_step == before:
                            self.global_step += done
                        progress.beat(self.global_step)
                        self.monitors.at(self.global_step, self.epoch_num)
                        event(callbacks.trigger_step)
                        # After an epoch's last step the events of its end come first: a run that
                        # was saved before them would continue with the next epoch.
                        if left > done:
                            self._settle()
                    self.follow_chief(after_steps=True)
                    event(callbacks.after_epoch)
                    event(callbacks.trigger_epoch)
                    self.monitors.put_times(self.clock.lap(self.input_source.waited))
                    self.monitors.flush()
                    self._settle()  # the time of saving belongs to the next epoch
            logger.info("training is finished after epoch %d", self.epoch_num)
        except StopTraining as reason:
            logger.info("training was stopped: %s", reason)
            error = self.stop_request.error()
        except BaseException as reason:
            error, failed = reason, True
            raise
        finally:
            finish(callbacks, self.monitors, error, failed)
            if failed and error is not None:
                self.ranks.report(error)
        if error is not None:
            raise error

    def _begin(self, steps_per_epoch: int, starting_epoch: int, max_epoch: int) -> None:
        within_epoch = self._resumed and 0 <= self.local_step < self.steps_per_epoch - 1
        if within_epoch and steps_per_epoch != self.steps_per_epoch:
            raise ValueError(
                f"the checkpoint was saved within an epoch of {self.steps_per_epoch} "
                f"steps; expected the same steps_per_epoch, received {steps_per_epoch}"
            )
        self.steps_per_epoch, self.max_epoch = steps_per_epoch, max_epoch
        self.stop_request.clear()
        if not self._resumed:
            self.epoch_num = starting_epoch - 1
        self.starting_epoch = self.epoch_num + (0 if within_epoch else 1)
        if not within_epoch:
            self.local_step = -1
        self._within_epoch = within_epoch
        # A run that neither resumes nor continues another one writes into a tidy directory.
        directory = logger.get_logger_dir()
        continues = self._resumed or self._has_run or self.starting_epoch > 1
        self._has_run = True
        if directory and self.monitors.monitors and not continues and not logger.keeps_runs():
            move_earlier_run(Path(directory))

    def follow_chief(self, after_steps: bool = False) -> list[str]:
        """Gives all ranks the chief's values of the variables; returns the names of those changed.

        What callbacks of the chief have assigned reaches the others before each epoch. The state of
        layers, such as moving averages, does so after the steps of each epoch: validation on all
        ranks needs it. Weights are the same then, or a warning names them.
        """
        changed = self.ranks.copy_from_chief(self.store.saved())
        weights = [name for name in changed if name in self.store.trainable()]
        if after_steps and weights:
            logger.warning(
                "%s differed between the ranks after epoch %d, and now are the chief's: has a "
                "callback changed them within the epoch, or do the ranks compute differently?",
                weights[:NAMED_WEIGHTS],
                self.epoch_num,
            )
        return changed

    def configuration(self) -> dict[str, Any]:
        """The facts about this trainer that help a reader of the run later."""
        return {"trainer": type(self).__name__, **self.run_configuration}

    @property
    def has_summaries(self) -> bool:
        """Whether fetching `ALL_SUMMARIES` would return anything."""
        return False

    def collected_summaries(self) -> Sequence[Summary]:
        """What the tower has written by `tf.summary` since the last call."""
        return ()

    @property
    def step_seconds(self) -> float:
        """The seconds that this run has spent in steps so far, including the wait for data."""
        return self.clock.step_seconds

    def when_settled(self, action: Callable[[], None]) -> None:
        """Runs `action` after every callback has handled the current event: the moment to save."""
        self._deferred.append(self.callbacks.clock.on_account(action))

    def _settle(self) -> None:
        """After an event: runs what was deferred, and ends training if that was asked for."""
        actions, self._deferred = self._deferred, []
        if actions:
            late = adopt_attributes(self.store, self) if self.adopts_attributes else []
            if late:
                raise ValueError(
                    f"expected {type(self).__name__} to have all variables before training, but "
                    f"{late} appeared later, so a resumed run could not load them. Make them in "
                    "__init__: call a model once, and optimizer.build(model.trainable_variables)"
                )
            self.monitors.persist()
        for action in actions:
            action()
        within_epoch = 0 <= self.local_step < self.steps_per_epoch - 1
        if self.ranks.size == 1 or not within_epoch:  # otherwise the ranks agree on the next call
            codes = self.ranks.agree(self.stop_request.code, what="an epoch's events")
            self.leave_if_asked(codes[:, 0].tolist())

    def leave_if_asked(self, codes: Sequence[int]) -> None:
        """Ends training, between two steps, if a rank was asked to; callbacks may save.

        `codes` are those of the stop requests of all ranks.
        """
        reason = self.stop_request.agreed(codes, self.global_step)
        if reason:
            self.callbacks.interrupted()  # nothing has been saved within this epoch yet
            raise StopTraining(reason)


class NoOpTrainer(Trainer):
    """Its steps do nothing: to run callbacks by themselves, an evaluation for example.

    `tower_func` and `input_source` may be set if callbacks need them.
    """

    trains = False
    runs_many = True

    def run_step(self) -> None:
        """Nothing."""

    def run_steps(self, count: int) -> int:
        return count


def steps_of_data(source: InputSource, batches_per_step: int) -> int:
    """The whole steps in the data; batches that are left over begin the next epoch."""
    batches = source.size()
    if batches is None:
        raise ValueError("the length of the data is not known: pass steps_per_epoch=")
    steps, left = divmod(batches, batches_per_step)
    if left:
        logger.info(
            "%d batches are not a multiple of the %d batches of a step: an epoch has %d steps, and "
            "the data continues from one epoch to the next",
            batches,
            batches_per_step,
            max(steps, 1),
        )
    return max(steps, 1) if batches else 0


def run_info(trainer: Trainer) -> RunInfo:
    directory = logger.get_logger_dir()
    return RunInfo(
        Path(directory) if directory else None,
        starting_epoch=trainer.starting_epoch,
        starting_step=trainer.global_step,
        resumed=trainer._resumed,
        steps_per_epoch=trainer.steps_per_epoch,
        max_epoch=trainer.max_epoch,
        configuration=trainer.configuration(),
        devices=trainer.device_names,
    )


def finish(
    callbacks: Callbacks, monitors: Monitors, error: BaseException | None, failed: bool
) -> None:
    """Ends callbacks and monitors. Errors here must not replace the one that ended the run."""
    if not failed:  # what a script does after it has caught the error should not take for ever
        progress.finish()
    try:
        try:
            callbacks.after_train()
        finally:
            monitors.close(error)
    except Exception as another:
        if not failed:
            raise
        logger.error("after the run had failed: %s: %s", type(another).__name__, another)
