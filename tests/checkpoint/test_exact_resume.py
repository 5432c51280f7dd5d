"""Killed at random moments, restarted with other numbers of workers: the same run, bit for bit."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.checkpoint import exact_run
from towerpack.checkpoint import get_checkpoint_path, load_checkpoint_vars, load_run
from towerpack.checkpoint.compare import compare_checkpoints

SCRIPT = Path(exact_run.__file__)


def start(directory, workers):
    # A file, since a pipe that nobody reads would stop the run.
    with open(directory / "output", "ab") as output:
        return subprocess.Popen(
            [sys.executable, SCRIPT, directory, str(workers)], stdout=output, stderr=output
        )


def run_through(directory, workers=2):
    process = start(directory, workers)
    assert process.wait() == 0, (directory / "output").read_text()[-3000:]


def lines(directory):
    path = directory / "costs"
    return path.read_text().splitlines() if path.exists() else []


def costs(directory):
    """The cost of each step; one that was run twice must have cost the same."""
    found = {}
    for line in lines(directory):
        if len(line.split()) == 2 and line.endswith(tuple("0123456789")):
            step, cost = line.split()
            assert found.setdefault(int(step), cost) == cost, f"step {step} differs after a restart"
    return found


def kill_and_go_on(directory, kills, seed):
    moments = random.Random(seed)
    for number in range(kills):
        done = len(lines(directory))
        process = start(directory, moments.choice([0, 1, 2, 3]))
        wanted = done + moments.randint(1, 12)
        while process.poll() is None and len(lines(directory)) < wanted:
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.05))
        if process.poll() is not None:
            assert process.returncode == 0, (directory / "output").read_text()[-3000:]
            return number
        process.send_signal(signal.SIGKILL)
        process.wait()
    run_through(directory, workers=1)
    return kills


def check(tmp_path, kills, seed):
    whole, disturbed = tmp_path / "whole", tmp_path / "disturbed"
    whole.mkdir()
    disturbed.mkdir()
    run_through(whole)
    killed = kill_and_go_on(disturbed, kills, seed)
    expected = costs(whole)
    assert sorted(expected) == list(range(1, exact_run.STEPS + 1))
    assert costs(disturbed) == expected
    for name in (Path(get_checkpoint_path(whole)).name, "min-validation_error"):
        assert list(compare_checkpoints(whole / name, disturbed / name)) == []
    values = load_checkpoint_vars(get_checkpoint_path(disturbed))
    assert {"fc0/W/Adam", "fc0/W/ExponentialMovingAverage"} <= set(values)
    assert load_run(get_checkpoint_path(disturbed))["state"]["global_step"] == exact_run.STEPS
    return killed


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_P3_killed_and_restarted_with_other_workers_it_is_the_same_run(tmp_path):
    assert check(tmp_path, kills=3, seed=3) >= 2


@pytest.mark.soak
def test_P3_killed_fifty_times(tmp_path):
    """In several runs: one is over after a few kills."""
    killed = seed = 0
    while killed < 50:
        directory = tmp_path / str(seed)
        directory.mkdir()
        killed += check(directory, kills=5, seed=seed)
        seed += 1
