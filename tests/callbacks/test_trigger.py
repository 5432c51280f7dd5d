import pytest

from tests.callbacks.training import STEPS, Model, run
from towerpack.callbacks import (
    Callback,
    EnableCallbackIf,
    MergeAllSummaries,
    PeriodicCallback,
    PeriodicTrigger,
    ProcessTensors,
)
from towerpack.core.every import every
from towerpack.train.ranks import OneRank


class Noting(Callback):
    """Notes every event with the step."""

    def __init__(self, steps=True):
        self.events, self.steps = [], steps

    def note(self, name):
        self.events.append((name, self.epoch_num, self.global_step))

    def _next_due(self):
        return self.global_step + 1 if self.steps else None

    def _before_epoch(self):
        self.note("before_epoch")

    def _before_run(self):
        self.note("before_run")

    def _after_run(self, values):
        self.note("after_run")

    def _trigger_step(self):
        self.note("trigger_step")

    def _after_epoch(self):
        self.note("after_epoch")

    def _trigger(self):
        self.note("trigger")

    def of(self, name):
        return [(epoch, step) for event, epoch, step in self.events if event == name]


@pytest.mark.parametrize(
    "options",
    [{"every_k_steps": 4}, {"every_k_steps": "4 steps"}, {"every": every("4 steps")}],
    ids=str,
)
def test_periodic_trigger_replaces_the_trigger_of_epochs(options):
    noting = Noting(steps=False)
    result = run([PeriodicTrigger(noting, **options)], epochs=2)
    assert noting.of("trigger") == [(1, 4), (2, 8), (2, 12)]
    assert noting.of("before_epoch") == [(1, 0), (2, STEPS)]
    assert result.alone == [4, 8, 12]


def test_periodic_trigger_of_epochs_and_before_training():
    noting = Noting(steps=False)
    result = run([PeriodicTrigger(noting, every_k_epochs=2, before_train=True)], epochs=4)
    assert noting.of("trigger") == [(0, 0), (2, 2 * STEPS), (4, 4 * STEPS)]
    assert result.alone == []


def test_periodic_trigger_of_time_does_not_watch_steps():
    noting = Noting(steps=False)
    result = run([PeriodicTrigger(noting, every="0.0000001 s")], epochs=1)
    assert noting.of("trigger")[-1] == (1, STEPS)
    assert len(noting.of("trigger")) < STEPS  # after each call of the step function, not each step
    assert result.alone == []


def test_periodic_trigger_leaves_other_events_untouched():
    noting = Noting()
    run([PeriodicTrigger(noting, every_k_epochs=1)], epochs=1)
    assert noting.of("before_run") == [(1, step) for step in range(STEPS)]
    assert noting.of("after_run") == [(1, step + 1) for step in range(STEPS)]


def test_periodic_trigger_needs_an_interval():
    with pytest.raises(ValueError, match="every_k_steps"):
        PeriodicTrigger(Noting())
    with pytest.raises(ValueError, match="at least 1"):
        PeriodicTrigger(Noting(), every_k_steps=0)


def test_periodic_callback_masks_all_but_the_due_steps_and_the_very_last():
    noting = Noting()
    result = run([PeriodicCallback(noting, every_k_steps=4)], epochs=2, steps=5)
    assert noting.of("before_run") == [(1, 3), (2, 7), (2, 9)]  # before steps 4, 8 and the last
    assert noting.of("after_run") == noting.of("trigger_step") == [(1, 4), (2, 8), (2, 10)]
    assert result.alone == [4, 8, 10]
    assert noting.of("trigger") == [(2, 10)]  # 5 is no multiple; 10 is the last of all


def test_periodic_callback_of_epochs_passes_whole_epochs():
    noting = Noting()
    result = run([PeriodicCallback(noting, every_k_epochs=2)], epochs=3, steps=3)
    assert noting.of("after_run") == [(2, 4), (2, 5), (2, 6), (3, 9)]  # and the very last step
    assert noting.of("trigger") == [(2, 6), (3, 9)]
    assert noting.of("before_epoch") == [(2, 3)]
    assert result.alone == [4, 5, 6, 9]


@pytest.fixture
def clock(monkeypatch):
    """A second passes with each call of the step function, by the clock of all ranks."""
    now = [0.0]
    monkeypatch.setattr(OneRank, "now", lambda ranks: now[0])

    class Clock(Callback):
        def _next_due(self):
            return self.global_step + 1

        def _trigger_step(self):
            now[0] += 1

    return Clock()


def test_periodic_callback_of_time_passes_the_first_step_after_it(clock):
    noting = Noting()
    run([clock, PeriodicCallback(noting, every="4 s")], epochs=2, steps=6)
    assert noting.of("before_run") == [(1, 4), (2, 8), (2, 11)]  # and the very last step
    assert noting.of("after_run") == noting.of("trigger_step") == [(1, 5), (2, 9), (2, 12)]
    assert noting.of("trigger") == [(2, 12)]


def test_periodic_callback_of_time_for_what_acts_at_the_ends_of_epochs(clock):
    noting = Noting(steps=False)
    run([clock, PeriodicCallback(noting, every="7 s")], epochs=4, steps=3)
    assert noting.of("trigger") == [(3, 9), (4, 12)]


def test_periodic_callback_of_a_long_time_leaves_the_steps_fused():
    assert run([PeriodicCallback(Noting(), every="10 h")], epochs=2).alone == [2 * STEPS]


def test_summaries_at_any_interval(clock):
    def steps(period, *others):
        result = run([MergeAllSummaries(period), *others], epochs=2)
        return sorted({step for step, name, _ in result.monitor.scalars if name == "input-rms"})

    assert steps(0) == steps("1 epoch") == [6, 12]
    assert steps(4) == [4, 6, 10, 12]  # counted in each epoch
    assert steps("5 steps") == steps(every("5 steps")) == [5, 6, 10, 12]  # of the model
    assert steps("4 s", clock) == [5, 6, 9, 12]


def test_enable_callback_if_decides_once_for_a_step():
    asked, values = [], []

    def odd(self):
        asked.append(self.global_step)
        return self.global_step % 2 == 1

    process = ProcessTensors("cost", values.append)
    run([EnableCallbackIf(process, odd)], epochs=1)
    assert len(values) == 3  # the steps that begin at 1, 3 and 5
    noting = Noting()
    run([EnableCallbackIf(noting, odd)], epochs=1)
    assert noting.of("before_run") == [(1, 1), (1, 3), (1, 5)]
    assert noting.of("after_run") == [(1, 2), (1, 4), (1, 6)]
    assert noting.of("trigger_step") == [(1, 1), (1, 3), (1, 5)]
    assert noting.of("trigger") == []


def test_wrapped_names_that_do_not_exist_are_named():
    with pytest.raises(KeyError, match="nearest are \\['cost'"):
        run([PeriodicCallback(ProcessTensors("cosd", print), 2)], model=Model())
