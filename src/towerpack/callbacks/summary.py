"""The summaries of a tower."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack.callbacks.base import Callback
from towerpack.callbacks.epoch_end import EpochEnd
from towerpack.callbacks.interval import interval_of
from towerpack.core.every import Every
from towerpack.tower import get_op_tensor_name
from towerpack.tower.summary import ALL_SUMMARIES

POINTS_PER_EPOCH = 20  # of a moving average: enough to see a trend, too few to cost anything
FEWEST_STEPS = 100  # between two of them: each ends a call of many steps early


class MovingAverageSummary(Callback):
    """Puts what `add_moving_summary` has averaged, and the input's numbers, to the monitors.

    The averages live on the device and are updated inside the step: this reads them at the end of
    each epoch and, in long epochs, about twenty times within it, and keeps them for a restart. The
    cost is among them by default.
    `collection` and `train_op` are taken for the sake of old scripts; here there is one collection,
    and its updates are always part of the step.
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
            if not monitors.has_put(name):  # by KerasMetrics, say, as the mean over the epoch
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
    the model or `'10 min'`; 0 means none.

    They are those of `add_tensor_summary`, `add_param_summary` and the like, and those of
    `tf.summary` and `tf.compat.v1.summary` called in the main tower. All go to all monitors; of
    `tf.summary`, what is no scalar, image or text goes to those that take TensorBoard's messages.
    Other steps do not compute them, and are free to be fused.

    `run_alone` and `key` are taken for the sake of old scripts: summaries are always computed by a
    step, which takes its own batch, and there is one collection of them.
    """

    def __init__(self, period: int | str | Every = 0, run_alone: bool = False, key: Any = None):
        if isinstance(period, int) and period < 0:
            raise ValueError(f"expected period >= 0, received {period}")
        self.period, self.run_alone, self.key = period, run_alone, key
        self._interval = interval_of(None if isinstance(period, int) else period, None)
        self._end = EpochEnd()
        self._has_any: bool | None = None
        self._time_is_up = False

    def _before_train(self) -> None:
        self._interval.start(self.trainer)
        self._time_is_up = False

    def _next_of_period(self) -> int | None:
        """The next step that the period names."""
        coming = self.global_step + 1
        if isinstance(self.period, int):
            return coming + -self._end.position(self.trainer) % self.period if self.period else None
        self._time_is_up = self._interval.due_time(self.trainer) or self._time_is_up
        return coming if self._time_is_up else self._interval.next_step(self.trainer, coming)

    def _next_due(self) -> int | None:
        if self._has_any is False:
            return None
        due, coming = self._end.step(self.trainer), self.global_step + 1
        of_period = self._next_of_period()
        if of_period is not None:
            due = min(due, of_period)
        if due == coming and self._has_any is None:
            # Asked only now, since to find out takes the trainer some time.
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
    """Puts the mean of scalar tensors over the last `window` steps as `<name>/SMA`, once an epoch.

    It fetches them in every step, which therefore cannot be fused: `add_moving_summary` in the
    tower costs nothing of the kind. A single name stands for one tensor. The window goes on after
    a restart.

    >>> average = SimpleMovingAverage("cost", window=100)
    """

    def __init__(self, tensors: str | Sequence[str], window: int):
        if window < 1:
            raise ValueError(f"expected a window of at least one step, received {window}")
        self.names = [tensors] if isinstance(tensors, str) else list(tensors)
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
                    f"SimpleMovingAverage takes scalars, but {name!r} has shape {np.shape(value)}"
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
