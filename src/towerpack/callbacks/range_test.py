"""A test that finds an initial learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack.callbacks.base import Callback, StopTraining
from towerpack.callbacks.drawing import curve_picture
from towerpack.callbacks.hyperparam import HyperParam, as_param
from towerpack.core import logger

SMOOTHING = 0.9  # of the cost, which is noisy from batch to batch
SECTIONS = 10  # of the range of rates; the slope of the cost is measured over one of them


class LearningRateRangeTest(Callback):
    """Raises the learning rate from `lowest` to `highest`, step by step, and plots the cost.

    After `steps` steps, or when the smoothed cost has grown to `stop_factor` times its best, it
    logs a picture (`learning_rate_range_test`) and the scalar `suggested_learning_rate`, the rate
    at which the cost fell fastest before its minimum, and stops training. Use a separate run for
    it: it leaves the weights useless. All ranks raise the rate; the chief's cost decides.

    >>> test = LearningRateRangeTest(cost="cost", highest=10.0)
    """

    chief_only = False

    def __init__(
        self,
        param: str | HyperParam = "learning_rate",
        cost: str = "cost",
        lowest: float = 1e-6,
        highest: float = 1.0,
        steps: int = 200,
        stop_factor: float = 4.0,
    ):
        if not 0 < lowest < highest:
            raise ValueError(f"expected 0 < lowest < highest, received {lowest} and {highest}")
        self.param, self.cost, self.stop_factor = as_param(param), cost, stop_factor
        self.schedule = np.geomspace(lowest, highest, steps)
        self.suggestion: float | None = None

    def _setup_graph(self) -> None:
        self.param.setup_graph(self.trainer)
        self.rates: list[float] = []
        self.costs: list[float] = []
        self._average = 0.0

    def _before_run(self) -> Sequence[str] | None:
        self.param.set_value(self.schedule[len(self.rates)])
        return [self.cost]

    def _after_run(self, values: list[Any] | None) -> None:
        (cost,) = values or [math.nan]
        self.rates.append(float(self.param.get_value()))
        self._average = SMOOTHING * self._average + (1 - SMOOTHING) * float(cost)
        self.costs.append(self._average / (1 - SMOOTHING ** len(self.rates)))

    def _trigger_step(self) -> None:
        if not self.trainer.is_chief:
            return
        latest = self.costs[-1]
        diverged = not math.isfinite(latest) or latest > self.stop_factor * min(self.costs)
        if len(self.rates) == len(self.schedule) or diverged:
            self._finish()
            raise StopTraining("the range test is complete")

    def _finish(self) -> None:
        finite = np.isfinite(self.costs)
        rates, costs = np.asarray(self.rates)[finite], np.asarray(self.costs)[finite]
        if len(rates) < 3:
            logger.warning("the cost diverged at once: start the range test with a smaller rate")
            return
        self.suggestion = steepest_rate(rates, costs)
        monitors = self.trainer.monitors
        if self.suggestion is None:
            logger.warning("the cost did not fall at any %s up to %.3g", self.param, rates[-1])
        else:
            logger.info("the cost fell fastest at %s = %.3g", self.param, self.suggestion)
            monitors.put_scalar("suggested_learning_rate", self.suggestion)
        labels = ("learning rate range test", self.param.readable_name, self.cost)
        picture = curve_picture(rates, costs, *labels, log_x=True, mark=self.suggestion)
        monitors.put_image("learning_rate_range_test", picture)

    def _state(self) -> dict[str, Any]:
        return {"rates": self.rates, "costs": self.costs, "average": self._average}

    def _restore(self, state: dict[str, Any]) -> None:
        self.rates, self.costs = list(state["rates"]), list(state["costs"])
        self._average = state["average"]


def steepest_rate(rates: np.ndarray, costs: np.ndarray) -> float | None:
    """The rate, on a logarithmic scale, at which the cost falls fastest before its minimum.

    After its minimum the cost grows and jumps, and some of the jumps are steep. None if it never
    fell.

    >>> steepest_rate(np.float64([1, 10, 100, 1000, 10_000]), np.float64([9, 8, 3, 30, 10]))
    100.0
    """
    lowest = int(costs.argmin())
    if lowest == 0:
        return None
    # The slope is measured over a section, since single steps raise and lower the cost by chance.
    reach = max(1, len(costs) // SECTIONS // 2)
    middle = np.arange(lowest + 1)
    left, right = np.maximum(middle - reach, 0), np.minimum(middle + reach, lowest)
    slope = (costs[right] - costs[left]) / (np.log(rates[right]) - np.log(rates[left]))
    return float(rates[int(slope.argmin())])
