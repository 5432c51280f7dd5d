"""Hyperparameters by a table of epochs or steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from towerpack.callbacks.hyperparam import HyperParam
from towerpack.callbacks.hyperparam_setter import HyperParamSetter
from towerpack.core import logger

INTERPOLATIONS = (None, "linear")


class ScheduledHyperParamSetter(HyperParamSetter):
    """Sets a hyperparameter at given epochs, or steps.

    `schedule` is [(point, value)]: the value is set **after** that epoch (or, with
    `step_based=True`, that step) is complete, and 0 means before training. Between the points it
    stays, or with `interp='linear'` it moves in a straight line; before the first and after the
    last it is left alone. A run that begins in the middle gets the value that is due there, and
    says so, unless `set_at_beginning=False`.

    Based on steps, only the steps of the points run by themselves; a linear schedule changes the
    value after every step between its first and last point, which cannot be fused there.

    >>> rate = ScheduledHyperParamSetter("learning_rate", [(0, 0.1), (30, 0.01), (60, 0)])
    """

    def __init__(
        self,
        param: str | HyperParam,
        schedule: Sequence[tuple[int, float]],
        interp: str | None = None,
        step_based: bool = False,
        set_at_beginning: bool = True,
    ):
        super().__init__(param)
        self.schedule = _checked(schedule)
        if interp not in INTERPOLATIONS:
            raise ValueError(f"expected interp of {list(INTERPOLATIONS)}, received {interp!r}")
        self.interp, self.step_based, self.set_at_beginning = interp, step_based, set_at_beginning
        self.says_each_change = interp is None
        self._points = [point for point, _ in self.schedule]

    def value_at(self, point: float) -> Any:
        """The value that holds after `point`; None before the first."""
        index = bisect_right(self._points, point) - 1
        if index < 0:
            return None
        start, value = self.schedule[index]
        if self.interp is None or index == len(self.schedule) - 1:
            return value
        end, following = self.schedule[index + 1]
        return value + (point - start) / (end - start) * (following - value)

    def _point(self) -> int:
        return self.global_step if self.step_based else self.epoch_num

    def _before_train(self) -> None:
        # Of epochs the complete ones: a run may go on in the middle of one.
        point = self.global_step if self.step_based else self.trainer.starting_epoch - 1
        value = self.value_at(point)
        if value is None or not self.set_at_beginning:
            return
        before = self.get_current_value()
        self.param.set_value(value)
        if point > 0 and before != self.get_current_value():
            logger.warning(
                "by its schedule %s is %s after %s %d, where this run begins, but was %s; set",
                self.param,
                value,
                "step" if self.step_based else "epoch",
                point,
                before,
            )

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
        point = self._point()
        if self.interp is None:
            return dict(self.schedule).get(point)
        return self.value_at(point) if point <= self._points[-1] else None

    def _trigger(self) -> None:
        if self.step_based:  # set already, with the step
            self._put_used_value()
        else:
            super()._trigger()


def _checked(schedule: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    points = [point for point, _ in schedule]
    whole = all(int(point) == point for point in points)
    if not schedule or not whole or points[0] < 0 or sorted(set(points)) != points:
        raise ValueError(f"expected rising whole numbers as points, from 0 on, received {points}")
    return [(int(point), value) for point, value in schedule]
