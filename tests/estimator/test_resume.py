"""Programs that are killed while they train, and continue when they are started again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.estimator.linear import X, data, few_logs, joined, with_optimizer
from tests.estimator.test_estimator import Batches
from towerpack._tensorflow import v1
from towerpack.estimator import Estimator

ROOT = Path(__file__).parents[2]


def run(directory, *step):
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.estimator.victim", directory, *map(str, step)],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_is_killed_equals_one_that_was_not_bit_for_bit(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    done = run(whole)
    assert done.returncode == 0, done.stderr
    killed = run(parts, 22)  # in the second call of `train`, which begins at step 15
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (parts / "result.npz").exists()
    resumed = run(parts)
    assert resumed.returncode == 0, resumed.stderr
    with np.load(whole / "result.npz") as expected, np.load(parts / "result.npz") as found:
        assert sorted(expected) == sorted(found)
        assert expected["global_step"] == 30
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


class Failure(Exception):
    pass


class Fails(Batches):
    """Fails after a number of batches, as a process may end there."""

    def __init__(self, after):
        super().__init__()
        self.after = after

    def _trigger_step(self):
        if len(self.seen) == self.after:
            raise Failure


def test_a_call_that_was_interrupted_is_completed_by_the_next_one():
    model_fn = with_optimizer(lambda: v1.train.AdamOptimizer(0.1))

    def new(directory, length=4):
        config = few_logs(save_checkpoints_steps=2, log_step_count_steps=length)
        return Estimator(model_fn, directory, config)

    input_fn = data(3, num_epochs=2)
    whole = Batches()
    new("whole").train(input_fn, steps=1).train(input_fn, [whole], steps=6)
    parts = new("parts").train(input_fn, steps=1)
    with pytest.raises(Failure):
        parts.train(input_fn, [first := Fails(4)], steps=6)
    # Step 4 was the last to be saved. The length of an epoch may change.
    new("parts", 5).train(input_fn, [rest := Batches()], steps=6)
    assert first.seen[:3] + rest.seen == whole.seen
    assert len(whole.seen) == 6
    one, two = new("whole"), new("parts")
    for name in one.get_variable_names():
        np.testing.assert_array_equal(one.get_variable_value(name), two.get_variable_value(name))
    assert one.get_variable_value("global_step") == 7
    assert joined(whole.seen)[:10] != X.tolist()  # they were shuffled
