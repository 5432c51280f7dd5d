import numpy as np
import pytest

from tests.callbacks.training import STEPS, Model, run
from towerpack.callbacks import (
    MergeAllSummaries,
    MovingAverageSummary,
    ProcessTensors,
    SimpleMovingAverage,
)


def test_summaries_are_computed_with_the_last_step_of_an_epoch_only():
    result = run([MergeAllSummaries()], epochs=3)
    assert result.alone == [STEPS, 2 * STEPS, 3 * STEPS]
    steps = [step for step, name, _ in result.monitor.scalars if name == "input-rms"]
    assert steps == result.alone


def test_summaries_every_period_steps():
    result = run([MergeAllSummaries(period=4)], epochs=2)
    assert result.alone == [4, 6, 10, 12]  # counted in each epoch anew, as tensorpack did
    with pytest.raises(ValueError, match="period >= 0"):
        MergeAllSummaries(-1)


def test_a_tower_without_summaries_fuses_to_the_end():
    class Silent(Model):
        def build_graph(self, x, label):
            return super(Model, self).build_graph(x, label)

    assert run([MergeAllSummaries(period=2)], epochs=2, model=Silent()).alone == []


def test_moving_averages_resume():
    whole = run([MovingAverageSummary()], epochs=3)
    resumed = run([MovingAverageSummary()], epochs=3, resume=whole.saved[0])
    assert resumed.monitor.of("cost") == whole.monitor.of("cost")[1:]


def test_simple_moving_average_over_the_last_steps():
    costs = []
    average = SimpleMovingAverage("cost", window=8)
    result = run([ProcessTensors("cost:0", costs.append), average], epochs=2)
    expected = [np.mean(costs[:6]), np.mean(costs[4:12])]
    assert result.monitor.of("cost/SMA") == pytest.approx(expected)


def test_a_single_name_is_one_tensor_and_must_be_a_scalar():
    assert SimpleMovingAverage("cost", 2).names == ["cost"]
    with pytest.raises(ValueError, match="'prob' has shape"):
        run([SimpleMovingAverage("prob", 2)], epochs=1)
    with pytest.raises(ValueError, match="at least one step"):
        SimpleMovingAverage("cost", 0)
