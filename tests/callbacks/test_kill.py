"""Killed and started again, a run leaves one record: every step once, as if nothing had been."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.callbacks.recorded_run import EPOCHS, SAVED_EVERY, STEPS_PER_EPOCH, WAITS
from towerpack.checkpoint import get_checkpoint_path
from towerpack.monitor import JSONWriter, RunRecord
from towerpack.report import read_run

ROOT = Path(__file__).parents[2]
STEPS = EPOCHS * STEPS_PER_EPOCH
MEASURED = ("time/", "QueueInput")  # of the machine: differ from run to run


def start(directory, *arguments):
    directory.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.callbacks.recorded_run", directory, *arguments]
    # A file, since a pipe that nobody reads would stop the run.
    with open(directory / "output", "ab") as output:
        return subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)


def run_through(directory):
    process = start(directory)
    assert process.wait() == 0, (directory / "output").read_text()[-3000:]


def kill_after(directory, step):
    """Ends the run by force after this step, once its latest checkpoint is on the disk."""
    process = start(directory, str(step))
    saved = f"model-{step // SAVED_EVERY * SAVED_EVERY}"
    while not (
        (directory / WAITS).exists() and (get_checkpoint_path(directory) or "").endswith(saved)
    ):
        assert process.poll() is None, (directory / "output").read_text()[-3000:]
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    (directory / WAITS).unlink()


def comparable(record):
    return {name: value for name, value in record.items() if not name.startswith(MEASURED)}


def lines(directory):
    return [json.loads(line) for line in (directory / JSONWriter.LINES).read_text().splitlines()]


def in_tensorboard(directory):
    loader = EventAccumulator(str(directory), size_guidance={"scalars": 0, "images": 0})
    loader.Reload()
    scalars = {
        tag: [(event.step, event.value) for event in loader.Scalars(tag)]
        for tag in loader.Tags()["scalars"]
    }
    images = {
        tag: [(event.step, event.encoded_image_string) for event in loader.Images(tag)]
        for tag in loader.Tags()["images"]
    }
    return scalars, images


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_and_resumed_it_leaves_one_continuous_record(tmp_path):
    whole, directory = tmp_path / "whole", tmp_path / "run"
    run_through(whole)
    # Behind a save, before anything of the next step; some steps later; at the end of an epoch.
    kills = [14, 24, 30]
    for step in kills:
        kill_after(directory, step)
    run_through(directory)

    records = lines(directory)
    assert [record["global_step"] for record in records] == list(range(1, STEPS + 1))
    assert [comparable(record) for record in records] == [comparable(x) for x in lines(whole)]
    assert [set(record) for record in records] == [set(record) for record in lines(whole)]
    assert json.loads((directory / JSONWriter.LIST).read_text()) == records

    scalars, images = in_tensorboard(directory)
    expected_scalars, expected_images = in_tensorboard(whole)
    assert comparable(scalars) == comparable(expected_scalars)
    assert images == expected_images
    assert len(images) > 0 and len(scalars["step_cost"]) == STEPS
    for tag, points in scalars.items():
        assert [step for step, _ in points] == [step for step, _ in expected_scalars[tag]]

    times = RunRecord.load_times(directory)
    assert [record["epoch_num"] for record in times] == list(range(1, EPOCHS + 1))
    facts = RunRecord.load(directory)
    assert (facts["state"], len(facts["sessions"])) == ("finished", len(kills) + 1)
    assert comparable(facts["scalars"]) == comparable(RunRecord.load(whole)["scalars"])
    shown, expected = read_run(directory), read_run(whole)
    assert comparable(shown["curves"]) == comparable(expected["curves"])
    assert shown["images"] == expected["images"]
