"""The summaries of a tower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from towerpack.callbacks.base import Callback
from towerpack.tower.summary import ALL_SUMMARIES


class MovingAverageSummary(Callback):
    """Puts what `add_moving_summary` has averaged, and the input's numbers, to the monitors.

    The averages live on the device and are updated inside the step: this reads them, once an epoch.
    """

    def _trigger(self) -> None:
        for name, average in self.trainer.moving_averages.items():
            self.trainer.monitors.put_scalar(name, average.value())
        for name, value in self.trainer.input_source.summaries().items():
            self.trainer.monitors.put_scalar(name, value)


class MergeAllSummaries(Callback):
    """Computes the tower's summaries with the last step of each epoch, and every `period` steps.

    They are those of `add_tensor_summary`, `add_param_summary` and the like, which go to the
    monitors, and those of `tf.summary` and `tf.compat.v1.summary` called in the tower, which go to
    an event file of their own. Other steps do not compute them.
    """

    def __init__(self, period: int = 0):
        if period < 0:
            raise ValueError(f"expected period >= 0, received {period}")
        self.period = period

    def _before_run(self) -> Sequence[str] | None:
        if not self.trainer.has_summaries:
            return None
        last = self.local_step == self.trainer.steps_per_epoch - 1
        due = self.period and (self.local_step + 1) % self.period == 0
        return [ALL_SUMMARIES] if last or due else None

    def _after_run(self, values: list[Any] | None) -> None:
        if values is None:
            return
        (summaries,) = values
        monitors = self.trainer.monitors
        monitors.at(self.global_step, self.epoch_num)
        for name, value in summaries["scalar"].items():
            monitors.put_scalar(name, value)
        for name, value in summaries["histogram"].items():
            monitors.put_histogram(name, value)
        for name, value in summaries["image"].items():
            monitors.put_image(name, value)
