"""`stats.jsonl` and `stats.json`: continuous over restarts, every step once."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys

import pytest

from towerpack.core import logger
from towerpack.monitor import JSONWriter, Monitors, RunInfo


def write(directory, first_epoch, epochs, **info):
    writer = JSONWriter()
    writer.open(RunInfo(directory, first_epoch, **info))
    for epoch in range(first_epoch, first_epoch + epochs):
        writer.process_scalar("cost", 1 / epoch, 10 * epoch, epoch)
        writer.process_scalar("nan", math.nan, 10 * epoch, epoch)
        writer.flush(10 * epoch, epoch)
    writer.close()


def epochs_in(directory):
    lines = JSONWriter.load_existing_json(directory)
    assert json.loads((directory / "stats.json").read_text()) == lines
    return [record["epoch_num"] for record in lines]


def test_lines_and_list_agree_and_a_resumed_run_goes_on(tmp_path):
    write(tmp_path, 1, 2)
    write(tmp_path, 3, 1)
    lines = JSONWriter.load_existing_json(tmp_path)
    assert lines[1] == {"epoch_num": 2, "global_step": 20, "cost": 0.5, "nan": None}
    assert epochs_in(tmp_path) == [1, 2, 3]
    assert JSONWriter.load_existing_epoch_number(tmp_path) == 3


@pytest.mark.parametrize(
    "info", [{}, {"starting_step": 20}, {"starting_step": 20, "resumed": True}]
)
def test_epochs_after_the_checkpoint_come_again_once(tmp_path, info):
    write(tmp_path, 1, 5)
    write(tmp_path, 3, 1, **info)
    assert epochs_in(tmp_path) == [1, 2, 3]


def test_a_run_resumed_in_the_middle_of_an_epoch_keeps_the_steps_before(tmp_path):
    writer = JSONWriter()
    writer.open(RunInfo(tmp_path))
    for step in range(1, 8):
        writer.process_scalar("cost", float(step), step, 1)
    writer.close()
    again = JSONWriter()
    again.open(RunInfo(tmp_path, starting_epoch=1, starting_step=4, resumed=True))
    again.process_scalar("cost", 50.0, 5, 1)
    again.close()
    records = JSONWriter.load_existing_json(tmp_path)
    assert [(r["global_step"], r["cost"]) for r in records] == [
        (1, 1.0),
        (2, 2.0),
        (3, 3.0),
        (4, 4.0),
        (5, 50.0),
    ]


def test_the_history_of_a_resumed_run_is_whole(tmp_path):
    write(tmp_path, 1, 2)
    monitors = Monitors([JSONWriter()])
    monitors.open(RunInfo(tmp_path, 3, 20, resumed=True))
    monitors.at(30, 3)
    monitors.put_scalar("cost", 0.1)
    monitors.close()
    assert monitors.get_history("cost") == [(10, 1.0), (20, 0.5), (30, 0.1)]


def test_a_new_run_moves_the_old_scalars_aside(tmp_path):
    write(tmp_path, 1, 3)
    write(tmp_path, 1, 1)
    assert epochs_in(tmp_path) == [1]
    assert len((tmp_path / "stats.jsonl.old").read_text().splitlines()) == 3


def test_a_run_that_starts_beyond_the_old_one_moves_it_aside(tmp_path):
    write(tmp_path, 1, 2)
    write(tmp_path, 10, 1)
    assert epochs_in(tmp_path) == [10]
    assert (tmp_path / "stats.json.old").exists()


def test_an_incomplete_last_line_is_left_out(tmp_path):
    write(tmp_path, 1, 2)
    with open(tmp_path / "stats.jsonl", "a") as file:
        file.write('{"epoch_num": 3, "co')
    write(tmp_path, 3, 1)
    assert epochs_in(tmp_path) == [1, 2, 3]


def test_without_a_directory_nothing_is_read(tmp_path):
    logger.close_log_file()
    assert JSONWriter.load_existing_json() == []
    assert JSONWriter.load_existing_epoch_number() is None


KILLED = """
import os, signal, sys
from pathlib import Path
from towerpack.monitor import *
monitors = Monitors([JSONWriter(), RunRecord(), TFEventWriter(max_queue=1)])
monitors.open(RunInfo(Path(sys.argv[1])))
for step in range(1, 38):
    monitors.at(step, 1 + (step - 1) // 10)
    monitors.put_scalar("cost", 1.0 / step)
    if step % 10 == 0:
        monitors.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_that_resumes_leaves_one_continuous_record(tmp_path):
    pytest.importorskip("tensorboard", reason="comes with the extra tf")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from towerpack.monitor import RunRecord, TFEventWriter

    run = subprocess.run([sys.executable, "-W", "error", "-c", KILLED, tmp_path])
    assert run.returncode == -signal.SIGKILL
    # The checkpoint was that of step 25, in the middle of an epoch.
    monitors = Monitors([JSONWriter(), RunRecord(), TFEventWriter()])
    monitors.open(RunInfo(tmp_path, starting_epoch=3, starting_step=25, resumed=True))
    for step in range(26, 61):
        monitors.at(step, 1 + (step - 1) // 10)
        monitors.put_scalar("cost", 1.0 / step)
        if step % 10 == 0:
            monitors.flush()
    monitors.close()
    steps = list(range(1, 61))
    lines = [json.loads(line) for line in (tmp_path / "stats.jsonl").read_text().splitlines()]
    assert [record["global_step"] for record in lines] == steps
    assert json.loads((tmp_path / "stats.json").read_text()) == lines
    events = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    events.Reload()
    assert [event.step for event in events.Scalars("cost")] == steps
    facts = RunRecord.load(tmp_path)
    assert [x["state"] for x in facts["sessions"]] == ["running", "finished"]
    assert facts["state"] == "finished" and facts["process"]["pid"] == os.getpid()


def records_of(directory):
    lines = [json.loads(line) for line in (directory / "stats.jsonl").read_text().splitlines()]
    assert json.loads((directory / "stats.json").read_text()) == lines
    return lines


def test_what_comes_later_at_the_same_step_joins_its_record(tmp_path):
    monitors = Monitors([JSONWriter()])
    monitors.open(RunInfo(tmp_path))
    for step in (1, 2):
        monitors.at(step, 1)
        monitors.put_scalar("long/name/of/a/scalar", 0.123456789)
        monitors.flush()
        monitors.put_scalar("long/name/of/a/scalar", 1)
        monitors.put_scalar("late", step)
        monitors.persist()
        assert records_of(tmp_path)[-1]["late"] == step
    monitors.close()
    assert [list(record.values()) for record in records_of(tmp_path)] == [
        [1, 1, 1.0, 1.0],
        [1, 2, 1.0, 2.0],
    ]


@pytest.mark.parametrize("before", [1, 2])
def test_a_resumed_run_adds_to_the_record_of_its_step_and_repeats_nothing(tmp_path, before):
    monitors = Monitors([JSONWriter()])
    monitors.open(RunInfo(tmp_path))
    for step in range(1, before + 1):
        monitors.at(step, 1)
        monitors.put_scalar("rate", 0.1)
    monitors.close()
    monitors = Monitors([JSONWriter()])
    monitors.open(RunInfo(tmp_path, starting_step=before, resumed=True))
    monitors.at(before, 1)
    monitors.put_scalar("rate", 0.2)  # before training, say
    monitors.put_scalar("new", 3)
    monitors.at(before + 1, 1)
    monitors.put_scalar("rate", 0.2)
    monitors.close()
    assert records_of(tmp_path)[before - 1 :] == [
        {"epoch_num": 1, "global_step": before, "rate": 0.1, "new": 3.0},
        {"epoch_num": 1, "global_step": before + 1, "rate": 0.2},
    ]
    assert monitors.get_history("rate")[-2:] == [(before, 0.1), (before + 1, 0.2)]
