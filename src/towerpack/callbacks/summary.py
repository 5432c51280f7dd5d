"""Summaries of the tower, its gradients, its graph and its variables."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.callbacks.base import Callback, name_list
from towerpack.callbacks.interval import EpochEnd, earliest, interval_of
from towerpack.core import logger
from towerpack.core.every import Every
from towerpack.tower import get_op_tensor_name
from towerpack.tower.gradproc import global_norm
from towerpack.tower.summary import ALL_SUMMARIES

POINTS_PER_EPOCH = 20  # of a moving average: enough to show a trend, and cheap
FEWEST_STEPS = 100  # between two of them, since each ends a call of many steps early


class MovingAverageSummary(Callback):
    """Logs the averages of `add_moving_summary` and the statistics of the input.

    The averages live on the device and are updated inside the step. They are read at the end of
    each epoch and, in long epochs, about twenty times within it, and they survive a restart. The
    cost is one of them by default.

    `collection` and `train_op` exist for old scripts: there is one collection, and its updates are
    always part of the step.
    """

    def __init__(self, collection: Any = None, train_op: Any = None):
        self.collection, self.train_op = collection, train_op
        self._end = EpochEnd()

    def _next_due(self) -> int | None:
        coming, end = self.global_step + 1, self._end.step(self.trainer)
        due = coming + -self._end.position(self.trainer) % self._interval()
        return due if self.trainer.moving_averages and due < end else None

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

    `run_alone` and `key` exist for old scripts: summaries are always computed by a training step,
    and there is one collection of them.
    """

    def __init__(self, period: int | str | Every = 0, run_alone: bool = False, key: Any = None):
        if isinstance(period, int) and period < 0:
            raise ValueError(f"expected period >= 0, received {period}")
        self.period, self.run_alone, self.key = period, run_alone, key
        self._interval = interval_of(None if isinstance(period, int) else period)
        self._end = EpochEnd()
        self._has_any: bool | None = None
        self._time_is_up = False

    def _before_train(self) -> None:
        self._interval.start(self.trainer)
        self._time_is_up = False

    def _next_of_period(self) -> int | None:
        """The next step at which the period ends."""
        coming = self.global_step + 1
        if isinstance(self.period, int):
            return coming + -self._end.position(self.trainer) % self.period if self.period else None
        self._time_is_up = self._interval.due_time(self.trainer) or self._time_is_up
        return coming if self._time_is_up else self._interval.next_step(coming)

    def _next_due(self) -> int | None:
        if self._has_any is False:
            return None
        due = earliest(self._end.step(self.trainer), self._next_of_period())
        if due == self.global_step + 1 and self._has_any is None:
            # Only now, since it takes the trainer some time to find out.
            self._has_any = self.trainer.has_summaries
        return due if self._has_any is not False else None

    def _before_run(self) -> Sequence[str] | None:
        return [ALL_SUMMARIES]

    def _after_run(self, values: list[Any] | None) -> None:
        if values is None:
            return
        self._time_is_up = False
        (summaries,) = values
        monitors = self.trainer.monitors
        for name, value in summaries["scalar"].items():
            monitors.put_scalar(name, value)
        for name, value in summaries["histogram"].items():
            monitors.put_histogram(name, value)
        for name, value in summaries["image"].items():
            monitors.put_image(name, value)
        for kind, name, value in self.trainer.collected_summaries():
            if kind == "summary":
                monitors.put_summary(value)
            else:
                getattr(monitors, f"put_{kind}")(name, value)


class SimpleMovingAverage(Callback):
    """Logs the mean of scalar tensors over the last `window` steps as `<name>/SMA`, once an epoch.

    It fetches them in every step, so steps cannot be fused; `add_moving_summary` in the tower does
    not have that cost. The values in the window survive a restart.

    >>> average = SimpleMovingAverage("cost", window=100)
    """

    def __init__(self, tensors: str | Sequence[str], window: int):
        if window < 1:
            raise ValueError(f"expected a window of at least one step, received {window}")
        self.names = name_list(tensors)
        self.window = window
        self._values: dict[str, deque[float]] = {name: deque(maxlen=window) for name in self.names}

    def _setup_graph(self) -> None:
        for values in self._values.values():
            values.clear()

    def _before_run(self) -> Sequence[str] | None:
        return self.names

    def _after_run(self, values: list[Any] | None) -> None:
        for name, value in zip(self.names, values or [], strict=True):
            if np.ndim(value):
                raise ValueError(
                    f"SimpleMovingAverage expects scalars, but {name!r} has shape {np.shape(value)}"
                )
            self._values[name].append(float(value))

    def _trigger(self) -> None:
        for name, values in self._values.items():
            if values:
                op, _ = get_op_tensor_name(name)
                self.trainer.monitors.put_scalar(f"{op}/SMA", float(np.mean(values)))

    def _state(self) -> dict[str, list[float]]:
        return {name: list(values) for name, values in self._values.items()}

    def _restore(self, state: dict[str, list[float]]) -> None:
        for name, values in state.items():
            if name in self._values:
                self._values[name].extend(values)


class GradientNorm(Callback):
    """Logs the mean and maximum of the global norm of the gradients since the last trigger.

    As `gradient_norm/mean` and `gradient_norm/max`, of the gradients that the optimizer received,
    averaged over the towers, before it clips them. The norm is computed inside every step, which
    costs little and does not prevent fusion.
    """

    def _setup_graph(self) -> None:
        self._total, self._max, self._count = (
            self.trainer.store.make(
                f"gradient_norm/{name}",
                # A sum in float32 loses digits over a long epoch, and a count stops at 2**24.
                lambda: tf.zeros([], tf.float64),
                trainable=False,
                local=True,
            )
            for name in ("total", "max", "count")
        )
        self.trainer.add_to_step(self._update)

    def _update(self, gradients: Sequence[tuple[Any, Any]]) -> None:
        norm = tf.cast(global_norm(tf.cast(g, tf.float32) for g, _ in gradients), tf.float64)
        self._total.assign_add(norm)
        self._count.assign_add(1)
        self._max.assign(tf.maximum(self._max, norm))

    def _trigger(self) -> None:
        count = float(self._count.numpy())
        if not count:
            return
        monitors = self.trainer.monitors
        monitors.put_scalar("gradient_norm/mean", float(self._total.numpy()) / count)
        monitors.put_scalar("gradient_norm/max", float(self._max.numpy()))
        for variable in (self._total, self._max, self._count):
            variable.assign(0)

    def _state(self) -> list[float]:
        return [float(v.numpy()) for v in (self._total, self._max, self._count)]

    def _restore(self, state: list[float]) -> None:
        for variable, value in zip((self._total, self._max, self._count), state, strict=True):
            variable.assign(value)


class GraphSummary(Callback):
    """Passes the graph of the training step to the monitors, once, before the first step.

    `TFEventWriter` writes it in a separate thread, and TensorBoard shows it under "Graphs".
    """

    def _before_train(self) -> None:
        try:
            graph = self.trainer.tower_func.towers.training()[0].graph
        except (RuntimeError, IndexError):
            return  # the trainer has no tower but a step of its own
        if graph is not None:
            monitors = self.trainer.monitors
            monitors.put_graph(lambda: graph.as_graph_def(add_shapes=True).SerializeToString())


class ModelSummary(Callback):
    """Logs a table of the variables before training: names, shapes, numbers of parameters.

    Frozen variables are listed with the reason. `limit` shows only the largest. Other variables,
    such as those of optimizers, are counted but not listed.
    """

    def __init__(self, limit: int | None = None):
        if limit is not None and limit < 1:
            raise ValueError(f"expected a limit of at least 1, received {limit}")
        self.limit = limit

    def _before_train(self) -> None:
        logger.info("the model:\n%s", self.table())

    def table(self) -> str:
        """One line for each variable that is trained or frozen, and the totals."""
        store = self.trainer.store
        trainable, frozen = store.trainable(), store.frozen()
        listed = {n: v for n, v in store.variables.items() if n in trainable or n in frozen}
        rows = [
            (name, _shape(v), _size(v), f"{v.dtype.name}{_note(frozen.get(name))}")
            for name, v in listed.items()
        ]
        if self.limit is not None and len(rows) > self.limit:
            rows = sorted(rows, key=lambda row: -row[2])[: self.limit]
        widths = [max([5, *(len(str(row[column])) for row in rows)]) for column in (0, 1)]
        lines = [f"{'name':<{widths[0]}}  {'shape':<{widths[1]}}  {'parameters':>12}  type"]
        for name, shape, size, dtype in rows:
            lines.append(f"{name:<{widths[0]}}  {shape:<{widths[1]}}  {size:>12,}  {dtype}")
        if len(rows) < len(listed):
            lines.append(f"... and {len(listed) - len(rows)} smaller variables")
        others = [v for name, v in store.variables.items() if name not in listed]
        lines.append(f"{len(trainable)} trainable variables: {_total(trainable.values())}")
        if frozen:
            lines.append(f"{len(frozen)} frozen variables: {_total(store[n] for n in frozen)}")
        lines.append(f"{len(others)} others (of optimizers, for example): {_total(others)}")
        return "\n".join(lines)


def _note(why: str | None) -> str:
    return f", frozen: {why}" if why else ""


def _shape(variable: Any) -> str:
    return "x".join(str(size) for size in variable.shape) or "scalar"


def _size(variable: Any) -> int:
    return math.prod(variable.shape)


def _total(variables: Iterable[Any]) -> str:
    known = list(variables)
    memory = sum(_size(variable) * variable.dtype.size for variable in known)
    return f"{sum(map(_size, known)):,} numbers, {memory / 1024**2:.2f} MB"
