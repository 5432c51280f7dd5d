"""Each callback's time is its own, wherever it spends it."""

from __future__ import annotations

import time

from tests.callbacks.training import STEPS, run
from towerpack.callbacks import Callback, RunOp
from towerpack.monitor import MonitorBase

PAUSE = 0.02  # seconds


class Times(MonitorBase):
    def __init__(self):
        self.epochs, self.verdicts = [], []

    def process_times(self, times, verdict, step, epoch):
        self.epochs.append(times)
        self.verdicts.append(verdict)


class AtSteps(Callback):
    """Takes its time before, at and after each step."""

    def _before_run(self):
        time.sleep(PAUSE)
        return ["cost"]

    def _after_run(self, values):
        time.sleep(PAUSE)

    def _trigger_step(self):
        time.sleep(PAUSE)


class AtTheEnd(Callback):
    """Takes its time at the end of an epoch, and when everything is settled."""

    def _trigger(self):
        time.sleep(PAUSE)
        self.trainer.when_settled(self._later)

    def _later(self):
        time.sleep(STEPS * PAUSE)


class Listening(Callback):
    """Puts a monitor beside those of the run."""

    def __init__(self, monitor):
        self.monitor = monitor

    def _before_train(self):
        self.trainer.monitors._active.append(self.monitor)


def test_time_is_added_up_by_callback_also_around_steps_and_when_settled():
    seen = Times()
    run([Listening(seen), AtSteps(), AtTheEnd(), RunOp(lambda: None)], epochs=2)
    first, second = seen.epochs
    for times in (first, second):
        costs = times.by_callback
        assert costs["AtSteps"].seconds >= costs["AtSteps"].at_steps > 3 * STEPS * PAUSE
        assert costs["AtTheEnd"].seconds > PAUSE and costs["AtTheEnd"].at_steps == 0
        assert times.total >= times.data + times.step + times.callbacks
        assert times.costliest() == "AtSteps"
    assert second.by_callback["AtTheEnd"].seconds > (STEPS + 1) * PAUSE
    assert first.first and not second.first  # the tracing of the step is in the first
    assert seen.verdicts == ["", ""]  # they are too short to tell
