"""The examples run, a few steps each, on the data in the package, with warnings as errors."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# As the tests themselves: quiet, and on the CPU.
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", "PATH": "/usr/bin:/bin"}


def run(script, *arguments, launch=()):
    command = [sys.executable, "-W", "error", *launch, EXAMPLES / script, *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "TensorFlow was imported before towerpack" not in done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", ["dcgan", "wgan_gp"])
def test_gan_examples_draw_a_grid_after_each_epoch(name):
    run(f"gan/{name}.py", "--quick", "--logdir", "run")
    grids = sorted(Path("run").glob("samples-*.png"))
    assert [path.name for path in grids] == ["samples-000002.png", "samples-000004.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in grids)


def test_trainers_with_a_step_of_their_own():
    log = run("trainers/own_step.py")
    assert "train_error" in log
    assert "large_cost" in log
    assert "small_cost" in log


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_any_number_of_ranks_reach_the_accuracy_of_one(ranks):
    launch = ["-m", "towerpack", "launch", "--nproc", str(ranks)] if ranks > 1 else []
    log = run("distributed.py", "--logdir", "run", launch=launch)
    (accuracy,) = re.findall(r"^validation accuracy: (\S+)$", log, re.MULTILINE)
    assert float(accuracy) > 0.93
