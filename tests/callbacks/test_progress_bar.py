import pytest

from tests.callbacks.training import FUSED, STEPS, run
from tests.tiny_model import BATCH
from towerpack.callbacks import Callback, ProgressBar, progress_bar
from towerpack.core.progress import Progress
from towerpack.train import Trainer


class Bar(Progress):
    """A real bar that also remembers."""

    made: list = []  # noqa: RUF012 (of the class on purpose)

    def __init__(self, *args):
        super().__init__(*args)
        self.updates, self.notes = [], []
        Bar.made.append(self)

    def update(self, count=1):
        self.updates.append(count)
        super().update(count)

    def note(self, text):
        self.notes.append(text)
        super().note(text)


@pytest.fixture
def bars(monkeypatch):
    monkeypatch.setattr(progress_bar, "Progress", Bar)
    monkeypatch.setattr(progress_bar, "NOTE_SECONDS", 0.0)
    Bar.made = []
    return Bar.made


def test_the_bar_moves_by_as_many_steps_as_were_done(bars):
    result = run([ProgressBar()], epochs=2)
    assert result.alone == []
    assert [bar.description for bar in bars] == ["epoch 1/2", "epoch 2/2"]
    for bar in bars:
        assert bar.total == bar.done == STEPS
        assert max(bar.updates) == FUSED
        assert bar.samples == BATCH


def test_chosen_scalars_are_shown_from_averages_monitors_and_tensors(bars):
    put = type("Put", (Callback,), {"_trigger": lambda s: s.trainer.monitors.put_scalar("e", 7)})()
    result = run([put, ProgressBar(["cost", "e", "Mean"])], epochs=2)
    first, last = bars[0].notes[-1], bars[1].notes[-1]
    assert first.startswith("cost=")
    assert "Mean=" in first
    assert " e=" not in first  # not put before the end of the first epoch
    assert " e=7 " in last
    assert (
        len(result.alone) == 2 * STEPS
    )  # a tensor is fetched 20 times an epoch, which has 6 steps


def test_what_is_no_scalar_is_refused():
    with pytest.raises(ValueError, match="ProgressBar expects scalars, but 'prob' has shape"):
        run([ProgressBar("prob")], epochs=1)


def test_the_bar_ends_after_an_error(bars):
    class Failing(Callback):
        def _trigger_step(self):
            raise ZeroDivisionError

    bar = ProgressBar()
    with pytest.raises(ZeroDivisionError):
        run([bar, Failing()], epochs=1)
    assert bar._bar is None


def test_tensors_are_fetched_seldom_in_a_long_epoch():
    result = run([ProgressBar("Mean")], epochs=1, steps=100)
    assert result.alone == list(range(1, 101, 5))


def test_the_cost_is_shown_by_default(bars):
    run([ProgressBar()], epochs=1)
    assert all(note.startswith("cost=") for note in bars[0].notes)


def test_the_cost_of_a_trainer_of_ones_own_is_shown(bars):
    class Own(Trainer):
        def run_step(self):
            self.monitors.put_scalar("cost", 1 / (self.global_step + 1))

    trainer = Own()
    trainer.train([ProgressBar()], [], steps_per_epoch=4, max_epoch=1)
    assert bars[0].notes == ["cost=1", "cost=0.5", "cost=0.3333", "cost=0.25", "cost=0.25"]
