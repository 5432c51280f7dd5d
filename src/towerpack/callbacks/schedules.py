"""Schedules of hyperparameters: tables of epochs or steps, and functions of the epochs finished."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from towerpack.callbacks.hyperparam import HyperParam, HyperParamSetter
from towerpack.core import logger

Schedule = Callable[[float, Any], float]  # of (epochs finished, value now)


class ScheduledHyperParamSetter(HyperParamSetter):
    """Sets a hyperparameter at given epochs or steps.

    `schedule` is [(point, value)]: the value is set **after** that epoch (or, with
    `step_based=True`, that step) is complete, and 0 means before training. Between the points the
    value stays, or with `interp='linear'` it is interpolated; before the first and after the last
    point it is not touched. A run that begins in the middle gets the value that is due there, and
    logs that, unless `set_at_beginning=False`.

    Based on steps, only the steps of the points run by themselves. A linear schedule changes the
    value after every step between its first and last point, so those steps cannot be fused.

    >>> rate = ScheduledHyperParamSetter("learning_rate", [(0, 0.1), (30, 0.01), (60, 0)])
    """

    same_on_all_ranks = True

    def __init__(
        self,
        param: str | HyperParam,
        schedule: Sequence[tuple[int, float]],
        interp: str | None = None,
        step_based: bool = False,
        set_at_beginning: bool = True,
    ):
        super().__init__(param)
        points = [point for point, _ in schedule]
        whole = all(int(point) == point for point in points)
        if not schedule or not whole or points[0] < 0 or sorted(set(points)) != points:
            raise ValueError(f"expected increasing whole numbers >= 0 as points, received {points}")
        if interp not in (None, "linear"):
            raise ValueError(f"expected interp of None or 'linear', received {interp!r}")
        self.schedule = [(int(point), value) for point, value in schedule]
        self.interp, self.step_based, self.set_at_beginning = interp, step_based, set_at_beginning
        self.logs_each_change = interp is None
        self._points = [point for point, _ in self.schedule]

    def value_at(self, point: float) -> Any:
        """The value that holds after `point`; None before the first."""
        index = bisect_right(self._points, point) - 1
        if index < 0:
            return None
        if self.interp is None:
            return self.schedule[index][1]
        return float(np.interp(point, self._points, [value for _, value in self.schedule]))

    def _before_train(self) -> None:
        # Only complete epochs count: a run may resume in the middle of one.
        point = self.global_step if self.step_based else self.trainer.starting_epoch - 1
        value = self.value_at(point)
        if value is None or not self.set_at_beginning:
            return
        before = self.get_current_value()
        self.param.set_value(value)
        if point > 0 and before != self.get_current_value():
            unit = "step" if self.step_based else "epoch"
            message = "%s changes from %s to %s, the scheduled value after %s %d"
            logger.warning(message, self.param, before, value, unit, point)

    def _next_due(self) -> int | None:
        if not self.step_based:
            return None
        done = self.global_step
        following = next((point for point in self._points if point > done), None)
        inside = self._points[0] <= done < self._points[-1]
        return done + 1 if self.interp is not None and inside else following

    def _trigger_step(self) -> None:
        if self.step_based:
            self._set_param()

    def _get_value_to_set(self) -> Any:
        point = self.global_step if self.step_based else self.epoch_num
        if self.interp is None:
            return dict(self.schedule).get(point)
        return self.value_at(point) if point <= self._points[-1] else None


def warmup(
    peak: float, epochs: float, start: float = 0.0, then: Schedule | None = None
) -> Schedule:
    """A linear rise from `start` to `peak`; then the value stays, or follows `then`.

    `then` counts epochs from the end of the rise. Like all schedules here, the result is a function
    of (epochs finished, value now) for `HyperParamSetterWithFunc`; it ignores the value. Epochs may
    be fractions: `PeriodicTrigger(HyperParamSetterWithFunc(...), every_k_steps=100)` is smooth.

    >>> rate = warmup(0.1, epochs=5)
    >>> rate(0, None), rate(2.5, None), rate(80, None)
    (0.0, 0.05, 0.1)
    """
    _check_positive(epochs=epochs)

    def value(finished: float, now: Any = None) -> float:
        if finished < epochs:
            return start + (peak - start) * finished / epochs
        return peak if then is None else then(finished - epochs, now)

    return value


def cosine(peak: float, total: float, final: float = 0.0, warmup: float = 0.0) -> Schedule:
    """A linear rise over `warmup` epochs to `peak`, then half a cosine to `final` at epoch `total`.

    >>> rate = cosine(1.0, total=10)
    >>> rate(0, None), round(rate(5, None), 6), round(rate(10, None), 6), round(rate(12, None), 6)
    (1.0, 0.5, 0.0, 0.0)
    """
    _check_positive(total=total)
    if not 0 <= warmup < total:
        raise ValueError(f"expected 0 <= warmup < total, received {warmup} and {total}")

    def value(finished: float, now: Any = None) -> float:
        if finished < warmup:
            return peak * finished / warmup
        share = min(1.0, (finished - warmup) / (total - warmup))
        return _half_cosine(peak, final, share)

    return value


def one_cycle(
    peak: float, total: float, start: float | None = None, final: float = 0.0, rise: float = 0.3
) -> Schedule:
    """Half a cosine from `start` to `peak` in the share `rise` of the epochs, then one to `final`.

    `start` is `peak / 25` by default.

    >>> rate = one_cycle(1.0, total=10)
    >>> round(rate(0, None), 6), rate(3, None), round(rate(10, None), 6)
    (0.04, 1.0, 0.0)
    """
    _check_positive(total=total)
    if not 0 < rise < 1:
        raise ValueError(f"expected 0 < rise < 1, received {rise}")
    first = peak / 25 if start is None else start
    top = rise * total

    def value(finished: float, now: Any = None) -> float:
        if finished <= top:
            return _half_cosine(first, peak, finished / top)
        return _half_cosine(peak, final, min(1.0, (finished - top) / (total - top)))

    return value


def _half_cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def _check_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if number <= 0:
            raise ValueError(f"expected {name} > 0, received {number}")
