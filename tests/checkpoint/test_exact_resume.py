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
from towerpack.checkpoint.variables import compare_checkpoints

SCRIPT = Path(exact_run.__file__)
START_UP = 6.0  # seconds within which a process that was just started is killed, now and then


def start(directory, workers, epochs):
    # A file, since a pipe that nobody reads would stop the run.
    with open(directory / "output", "ab") as output:
        return subprocess.Popen(
            [sys.executable, SCRIPT, directory, str(workers), str(epochs)],
            stdout=output,
            stderr=output,
        )


def run_through(directory, workers, epochs):
    process = start(directory, workers, epochs)
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


def kill_and_go_on(directory, kills, seed, epochs):
    """Kills the run some steps after each start, or while it starts; the number of kills."""
    moments, workers = random.Random(seed), 0
    for number in range(kills):
        done = len(lines(directory))
        workers = moments.choice(sorted({0, 1, 2, 3} - {workers}))
        process = start(directory, workers, epochs)
        steps = moments.randint(0, 12)
        while process.poll() is None and len(lines(directory)) < done + steps:
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.05 if steps else START_UP))
        if process.poll() is not None:
            assert process.returncode == 0, (directory / "output").read_text()[-3000:]
            return number
        process.send_signal(signal.SIGKILL)
        process.wait()
    run_through(directory, 1, epochs)
    return kills


def check(tmp_path, kills, seed, epochs=exact_run.EPOCHS):
    whole, disturbed = tmp_path / "whole", tmp_path / "disturbed"
    whole.mkdir()
    disturbed.mkdir()
    run_through(whole, 2, epochs)
    killed = kill_and_go_on(disturbed, kills, seed, epochs)
    expected, steps = costs(whole), epochs * exact_run.STEPS_PER_EPOCH
    assert sorted(expected) == list(range(1, steps + 1))
    assert costs(disturbed) == expected
    for name in (Path(get_checkpoint_path(whole)).name, "min-validation_error"):
        assert list(compare_checkpoints(whole / name, disturbed / name)) == []
    values = load_checkpoint_vars(get_checkpoint_path(disturbed))
    assert {"fc0/W/Adam", "fc0/W/ExponentialMovingAverage"} <= set(values)
    assert load_run(get_checkpoint_path(disturbed))["state"]["global_step"] == steps
    return killed


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_P3_killed_and_restarted_with_other_workers_it_is_the_same_run(tmp_path):
    assert check(tmp_path, kills=3, seed=3) >= 2


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_P3_killed_ten_times_in_each_of_five_runs(tmp_path, seed):
    assert check(tmp_path, kills=10, seed=seed, epochs=16) == 10
