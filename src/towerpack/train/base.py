"""The training loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from towerpack.callbacks import Callback, Callbacks, StopTraining
from towerpack.checkpoint import ModelLoader, SmartInit
from towerpack.core import logger
from towerpack.input_source import InputSource
from towerpack.monitor import MonitorBase, Monitors, RunInfo
from towerpack.tower import TowerFunc, VariableStore
from towerpack.tower.summary import MovingAverage


class Trainer:
    """The loop, its callbacks and its monitors; a subclass says what one step is (`run_step`).

    `train` is three calls that a user may also make himself: `setup_callbacks`, `initialize` and
    `main_loop`.
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

    def run_step(self) -> None:
        """One iteration: takes its input, updates the variables, advances `global_step` by one."""
        raise NotImplementedError(f"{type(self).__name__} must define run_step()")

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
        self.callbacks = Callbacks(callbacks)
        self.callbacks.setup_graph(self)

    def initialize(self, session_init: ModelLoader | None = None) -> None:
        """Gives the variables their values from a checkpoint, if there is one."""
        SmartInit(session_init).load(self.store.saved())

    def main_loop(
        self, steps_per_epoch: int, starting_epoch: int = 1, max_epoch: int = 99999
    ) -> None:
        """Runs epochs `starting_epoch` to `max_epoch`; `after_train` comes whatever happens."""
        self.steps_per_epoch, self.starting_epoch = steps_per_epoch, starting_epoch
        self.max_epoch, self.epoch_num = max_epoch, starting_epoch - 1
        directory = logger.get_logger_dir()
        self.monitors.open(RunInfo(Path(directory) if directory else None, starting_epoch))
        try:
            self._at_monitors()
            self.callbacks.before_train()
            for epoch_num in range(starting_epoch, max_epoch + 1):
                self.epoch_num = epoch_num
                self._run_epoch()
            logger.info("training is finished after epoch %d", self.epoch_num)
        except StopTraining as reason:
            logger.info("training was stopped: %s", str(reason) or "a callback asked for it")
        finally:
            try:
                self.callbacks.after_train()
            finally:
                self.monitors.close()

    def _run_epoch(self) -> None:
        self.callbacks.before_epoch()
        for local_step in range(self.steps_per_epoch):
            self.local_step = local_step
            self.run_step()
            self._at_monitors()
            self.callbacks.trigger_step()
        self.callbacks.after_epoch()
        self.callbacks.trigger_epoch()
        self.monitors.flush()

    def _at_monitors(self) -> None:
        self.monitors.at(self.global_step, self.epoch_num)

    def close(self) -> None:
        """Frees what the trainer holds; called by `launch_train_with_config`."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
