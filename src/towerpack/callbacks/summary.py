"""The moving averages of a tower, once an epoch."""

from __future__ import annotations

from towerpack.callbacks.base import Callback


class MovingAverageSummary(Callback):
    """Puts what `add_moving_summary` has averaged, and the input's numbers, to the monitors.

    The averages live on the device and are updated inside the step: this reads them, once an epoch.
    """

    def _trigger(self) -> None:
        for name, average in self.trainer.moving_averages.items():
            self.trainer.monitors.put_scalar(name, average.value())
        for name, value in self.trainer.input_source.summaries().items():
            self.trainer.monitors.put_scalar(name, value)
