"""Summaries of the tower, its gradients, its graph and its variables."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.callbacks.base import Callback, TrainerView, scalars
from towerpack.callbacks.interval import earliest, interval_of, last_step, next_in_epoch
from towerpack.callbacks.tensors import ProcessTensors
from towerpack.checkpoint.variable_names import own_names
from towerpack.core import logger
from towerpack.core.every import Every
from towerpack.core.files import atomic_file
from towerpack.models.summary import ModelTable, log_model, table_of_tower
from towerpack.tower import TowerTensorHandle, get_op_tensor_name
from towerpack.tower.gradproc import global_norm
from towerpack.tower.summary import ALL_SUMMARIES

POINTS_PER_EPOCH = 20  # of a moving average: cheap, and enough to show a trend
FEWEST_STEPS = 100  # between two points, since each point ends a call of many steps early


class MovingAverageSummary(Callback):
    """Logs the averages of `add_moving_summary` and the statistics of the input.

    The averages live on the device and are updated inside the step. They are read at the end of
    each epoch and, in long epochs, about twenty times within it, and they survive a restart. The
    cost is one of them by default.
    """

    def _next_due(self) -> int | None:
        due = next_in_epoch(self.trainer, self._interval())
        return due if self.trainer.moving_averages and due < last_step(self.trainer) else None

    def _trigger_step(self) -> None:
        done = self.local_step + 1
        if done % self._interval() == 0 and done < self.trainer.steps_per_epoch:
            self._put_averages()

    def _interval(self) -> int:
        return max(FEWEST_STEPS, self.trainer.steps_per_epoch // POINTS_PER_EPOCH)

    def _put_averages(self) -> None:
        monitors = self.trainer.monitors
        for name, average in self.trainer.moving_averages.items():
            if not monitors.has_put(name):  # KerasMetrics logs the mean over the epoch instead
                monitors.put_scalar(name, average.value())

    def _trigger(self) -> None:
        self._put_averages()
        for name, value in self.trainer.input_source.summaries().items():
            self.trainer.monitors.put_scalar(name, value)

    def _state(self) -> dict[str, list[float]]:
        averages = self.trainer.moving_averages.items()
        return {name: [float(a.total.numpy()), float(a.weight.numpy())] for name, a in averages}

    def _restore(self, state: dict[str, list[float]]) -> None:
        for name, (total, weight) in state.items():
            if name in self.trainer.moving_averages:
                average = self.trainer.moving_averages[name]
                average.total.assign(total)
                average.weight.assign(weight)


class MergeAllSummaries(Callback):
    """Computes the tower's summaries with the last step of each epoch, and every `period`.

    `period` is a number of steps, counted in each epoch, or an interval such as `'500 steps'` of
    the model or `'10 min'`; 0 means no period.

    The summaries are those of `add_tensor_summary`, `add_param_summary` and the like, and those of
    `tf.summary` and `tf.compat.v1.summary` called in the main tower. All go to all monitors, except
    that summaries of `tf.summary` other than scalars, images and text go only to monitors that take
    TensorBoard's messages. Other steps do not compute them and may be fused.
    """

    def __init__(self, period: int | str | Every = 0):
        if isinstance(period, int) and period < 0:
            raise ValueError(f"expected period >= 0, received {period}")
        self.period = period
        self._interval = interval_of(None if isinstance(period, int) else period)
        self._has_any: bool | None = None

    def _before_train(self) -> None:
        self._interval.start(self.trainer)

    def _next_of_period(self) -> int | None:
        """The next step at which the period ends."""
        if isinstance(self.period, int):
            return next_in_epoch(self.trainer, self.period) if self.period else None
        coming = self.global_step + 1
        time_is_up = self._interval.check_time(self.trainer)
        return coming if time_is_up else self._interval.next_step(coming)

    def _next_due(self) -> int | None:
        if self._has_any is False:
            return None
        due = earliest(last_step(self.trainer), self._next_of_period())
        if due == self.global_step + 1 and self._has_any is None:
            # The trainer needs some time to determine this, so it is not requested earlier.
            self._has_any = self.trainer.has_summaries
        return due if self._has_any is not False else None

    def _before_run(self) -> Sequence[str] | None:
        return [ALL_SUMMARIES]

    def _after_run(self, values: list[Any] | None) -> None:
        if values is None:
            return
        self._interval.time_is_up = False
        (summaries,) = values
        of_tower = [
            (kind, name, value)
            for kind, found in summaries.items()
            for name, value in found.items()
        ]
        monitors = self.trainer.monitors
        for kind, name, value in [*of_tower, *self.trainer.collected_summaries()]:
            if kind == "summary":
                monitors.put_summary(value)
            else:
                getattr(monitors, f"put_{kind}")(name, value)


class SimpleMovingAverage(ProcessTensors):
    """Logs the mean of scalar tensors over the last `window` steps as `<name>/SMA`, once an epoch.

    It fetches them in every step, so steps cannot be fused; `add_moving_summary` in the tower does
    not have that cost. The values in the window survive a restart.

    >>> average = SimpleMovingAverage("cost", window=100)
    """

    def __init__(self, tensors: str | Sequence[str], window: int):
        super().__init__(tensors, self._add)
        if window < 1:
            raise ValueError(f"expected a window of at least one step, received {window}")
        self.window = window

    def _setup_graph(self) -> None:
        self._values = {name: deque[float](maxlen=self.window) for name in self.names}

    def _add(self, *values: Any) -> None:
        for name, value in zip(self.names, scalars(self, self.names, values), strict=True):
            self._values[name].append(value)

    def _trigger(self) -> None:
        for name, values in self._values.items():
            if values:
                op, _ = get_op_tensor_name(name)
                self.trainer.monitors.put_scalar(f"{op}/SMA", float(np.mean(values)))

    def _state(self) -> dict[str, list[float]]:
        return {name: list(values) for name, values in self._values.items()}

    def _restore(self, state: dict[str, list[float]]) -> None:
        for name in state.keys() & self._values.keys():
            self._values[name].extend(state[name])


class GradientNorm(Callback):
    """Logs the mean and maximum of the global norm of the gradients since the last trigger.

    As `gradient_norm/mean` and `gradient_norm/max`, of the gradients that the optimizer received,
    averaged over the towers, before it clips them. The norm is computed inside every step, which
    costs little and does not prevent fusion.
    """

    chief_only = False  # it adds to the step, which all ranks trace alike

    def _setup_graph(self) -> None:
        def zeros() -> Any:
            # Total, maximum, count. A sum in float32 loses digits, and a count stops at 2**24.
            return tf.zeros([3], tf.float64)

        store = self.trainer.store
        self._numbers = store.make("gradient_norm", zeros, trainable=False, local=True)
        self.trainer.add_to_step(self._update)

    def _update(self, gradients: Sequence[tuple[Any, Any]]) -> None:
        norm = tf.cast(global_norm(tf.cast(g, tf.float32) for g, _ in gradients), tf.float64)
        total, largest, count = tf.unstack(self._numbers)
        self._numbers.assign([total + norm, tf.maximum(largest, norm), count + 1])

    def _trigger(self) -> None:
        total, largest, count = self._state()
        if count:
            self.trainer.monitors.put_scalar("gradient_norm/mean", total / count)
            self.trainer.monitors.put_scalar("gradient_norm/max", largest)
            self._restore([0.0, 0.0, 0.0])

    def _state(self) -> list[float]:
        return self._numbers.numpy().tolist()

    def _restore(self, state: list[float]) -> None:
        self._numbers.assign(state)


class GraphSummary(Callback):
    """Passes the graph of the training step to the monitors, once, before the first step.

    `TFEventWriter` writes it in a separate thread, and TensorBoard shows it under "Graphs".
    """

    def _before_train(self) -> None:
        tower = _main_tower(self.trainer)
        if tower is not None and (graph := tower.graph) is not None:
            monitors = self.trainer.monitors
            monitors.put_graph(lambda: graph.as_graph_def(add_shapes=True).SerializeToString())


class ModelSummary(Callback):
    """Logs the table of `model_summary` before training, and keeps it as `model.json` of the run.

    It reads the tower that the trainer has built, so nothing is traced again. A table of more than
    60 rows is shortened in the log; `towerpack summary RUN_DIR` prints all of it.
    """

    FILE = "model.json"

    def _before_train(self) -> None:
        table = self.table()
        if table is None:
            return
        log_model(table)
        directory = logger.get_logger_dir()
        if directory is not None:
            with atomic_file(Path(directory, self.FILE), "w") as file:
                json.dump(table.to_dict(), file)

    def table(self) -> ModelTable | None:
        """The table of the tower; None if the trainer has no tower but a step of its own."""
        tower, store = _main_tower(self.trainer), self.trainer.store
        if tower is None:
            return None
        saved = store.saved()
        own = own_names(saved, store.variables)
        return table_of_tower(tower, store, [name for name in saved if name not in own])


def _main_tower(trainer: TrainerView) -> TowerTensorHandle | None:
    try:
        return trainer.tower_func.towers.training()[0]
    except (RuntimeError, IndexError):
        return None  # the trainer has a step of its own
