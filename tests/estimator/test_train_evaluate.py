"""Training with evaluations, in one process and on two ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.estimator import rank_script
from tests.estimator.linear import data, few_logs, with_optimizer
from towerpack._tensorflow import v1
from towerpack.estimator import Estimator, EvalSpec, TrainSpec, train_and_evaluate

ROOT = Path(__file__).parents[2]
sgd = with_optimizer(lambda: v1.train.GradientDescentOptimizer(0.01))


def logged():
    """The scalars in the directory of the run, by step."""
    lines = map(json.loads, Path("run/stats.jsonl").read_text().splitlines())
    return {line["global_step"]: line for line in lines}


def test_the_model_is_evaluated_at_each_checkpoint_and_at_the_end():
    config = few_logs(save_checkpoints_steps=4, log_step_count_steps=2)
    estimator = Estimator(sgd, "run", config)
    evaluations = EvalSpec(data(3), name="all", start_delay_secs=0, throttle_secs=0)
    training = TrainSpec(data(3, num_epochs=None), max_steps=10)
    result = train_and_evaluate(estimator, training, evaluations)
    assert result == estimator.evaluate(data(3))
    assert result["global_step"] == 10
    found = {
        step: line["eval_all_loss"] for step, line in logged().items() if "eval_all_loss" in line
    }
    assert list(found) == [4, 8]
    for step, loss in found.items():
        again = estimator.evaluate(data(5), checkpoint_path=f"run/model-{step}")
        assert loss == pytest.approx(again["loss"])
    # The run is complete: it is only evaluated again.
    assert train_and_evaluate(estimator, training, evaluations) == result


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_ranks_equal_one_process(tmp_path):
    rank_script.main(1)
    one = json.loads(Path("result.json").read_text())
    directory = tmp_path / "two"
    directory.mkdir()
    launch = ["-m", "towerpack", "launch", "--nproc", "2", "-m", "tests.estimator.rank_script"]
    done = subprocess.run(
        [sys.executable, *launch, "2"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    two = json.loads((directory / "result.json").read_text())
    assert two == pytest.approx({**one, "W": pytest.approx(one["W"]), "b": pytest.approx(one["b"])})
    assert one["global_step"] == 12
