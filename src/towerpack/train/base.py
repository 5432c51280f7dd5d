"""The training loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from towerpack.callbacks import Callback, Callbacks, StopTraining
from towerpack.checkpoint import ModelLoader, SmartInit
from towerpack.core import logger
from towerpack.input_source import InputSource
from towerpack.monitor import MonitorBase, Monitors, RunInfo
from towerpack.tower import TowerFunc, VariableStore
from towerpack.tower.summary import MovingAverage
from towerpack.train.interrupts import Interrupts


class Trainer:
    """The loop, its callbacks and its monitors; a subclass says what one step is (`run_step`).

    `train` is three calls that a user may also make himself: `setup_callbacks`, `initialize` and
    `main_loop`. SIGTERM and the first Ctrl-C finish the step, let callbacks save, and leave.
    """

    is_chief = True
    tower_func: TowerFunc
    input_source: InputSource

    def __init__(self) -> None:
        self.moving_averages: dict[str, MovingAverage] = {}
        self.has_summaries = False
        self.store = VariableStore()
        self.monitors = Monitors([])
        self.callbacks = Callbacks([])
        self.epoch_num = self.global_step = 0
        self.local_step = -1
        self.steps_per_epoch = 0
        self.starting_epoch, self.max_epoch = 1, 0
        self.step_seconds = 0.0
        self._interrupts = Interrupts()
        self._settling: list[Callable[[], None]] = []
        self._resumed = False

    def run_step(self) -> None:
        """One iteration. `global_step` grows by one afterwards, unless it has grown already."""
        raise NotImplementedError(f"{type(self).__name__} must define run_step()")

    def run_steps(self, count: int) -> int:
        """Some of the next `count` steps, which no callback watches; how many were run."""
        self.run_step()
        return 1

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

    def setup_callbacks(
        self, callbacks: Sequence[Callback], monitors: Sequence[MonitorBase]
    ) -> None:
        """Sets up the callbacks: they may trace towers and make variables here."""
        self.monitors = Monitors(monitors)
        self.callbacks = Callbacks([cb for cb in callbacks if self.is_chief or not cb.chief_only])
        self.callbacks.setup_graph(self)

    def initialize(self, session_init: ModelLoader | None = None) -> None:
        """Gives the variables their values from a checkpoint, if there is one."""
        SmartInit(session_init).load(self.store.saved())

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
        self.max_epoch = max_epoch
        self._begin(steps_per_epoch, starting_epoch)
        directory = logger.get_logger_dir()
        self.monitors.open(RunInfo(Path(directory) if directory else None, self.starting_epoch))
        try:
            with self._interrupts.catching():
                self._at_monitors()
                self.callbacks.before_train()
                self._settle()
                while self.epoch_num < max_epoch or self._steps_left:
                    self._run_epoch()
            logger.info("training is finished after epoch %d", self.epoch_num)
        except StopTraining as reason:
            logger.info("training was stopped: %s", str(reason) or "a callback asked for it")
        finally:
            try:
                self.callbacks.after_train()
            finally:
                self.monitors.close()
        self._interrupts.leave_if_received()

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

    @property
    def _steps_left(self) -> int:
        """Of an epoch that was interrupted."""
        return self.steps_per_epoch - 1 - self.local_step if self._goes_on else 0

    def _run_epoch(self) -> None:
        if not self._goes_on:
            self.epoch_num, self.local_step = self.epoch_num + 1, -1
        self._goes_on = False
        self.callbacks.before_epoch()
        while self.local_step < self.steps_per_epoch - 1:
            self._advance()
        self.callbacks.after_epoch()
        self.callbacks.trigger_epoch()
        self.monitors.flush()
        self._settle()

    def _advance(self) -> None:
        """Runs the next step by itself if a callback watches it, else as many as are free."""
        due = self.callbacks.next_due()
        free = self.steps_per_epoch - 1 - self.local_step
        if due is not None:
            free = min(free, due - self.global_step - 1)
        started, before = time.perf_counter(), self.global_step
        if free > 0:
            done = self.run_steps(free)
            self.local_step += done
        else:
            done = 1
            self.local_step += 1
            self.run_step()
        self.step_seconds += time.perf_counter() - started
        if self.global_step == before:
            self.global_step += done
        self._at_monitors()
        self.callbacks.trigger_step()
        self._settle()

    def when_settled(self, action: Callable[[], None]) -> None:
        """Runs `action` once every callback has seen the current event: the moment to save."""
        self._settling.append(action)

    def _settle(self) -> None:
        actions, self._settling = self._settling, []
        for action in actions:
            action()
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
