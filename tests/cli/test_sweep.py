"""`towerpack sweep`: real trials in processes of their own, failures, kills, and refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from towerpack.cli import app
from towerpack.core import logger
from towerpack.monitor import JSONWriter, RunRecord
from towerpack.monitor.environment import is_alive
from towerpack.report.sweep import open_study, read_sweep

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, signal, time
from pathlib import Path
from tests.tiny_model import TinyModel, tiny_flow
from towerpack import (
    CallbackFactory, ClassificationError, InferenceRunner, ModelSaver, TrainConfig, optimizer
)

def wait_once(callback):
    if callback.epoch_num == 3 and os.environ.get("WAIT") and not Path("waiting").exists():
        Path("waiting").touch()
        while not callback.trainer.stop_request.received:
            time.sleep(0.1)

def get_config(lr: float = 0.1, mode: str = "good", epochs: int = 2):
    if mode == "raise":
        raise ValueError("expected another mode")
    if mode == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return TrainConfig(
        model=TinyModel(),
        optimizer=lambda: optimizer.SGD(lr),
        dataflow=tiny_flow(),
        callbacks=[
            InferenceRunner(tiny_flow(shuffle=False), ClassificationError()),
            ModelSaver(),
            CallbackFactory(trigger=wait_once),
        ],
        max_epoch=epochs,
    )
"""


@pytest.fixture(autouse=True)
def program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    Path("tiny.py").write_text(PROGRAM)
    yield
    logger.close_log_file()


def sweep(*arguments: object):
    return CliRunner().invoke(app, ["sweep", "tiny.py", *map(str, arguments)])


@pytest.mark.slow
def test_trials_that_fail_do_not_end_the_sweep():
    result = sweep("mode=raise,good,die", "lr=0.5", "--trials", 9)
    assert result.exit_code == 0, result.output
    assert "all 3 combinations of the space were tried" in result.output
    assert "towerpack train tiny.py mode=good lr=0.5" in result.output
    found = read_sweep("train_log/sweep-tiny")
    trials = {trial["parameters"]["mode"]: trial for trial in found["trials"]}
    assert {mode: trial["state"] for mode, trial in trials.items()} == {
        "good": "complete",
        "raise": "failed",
        "die": "failed",
    }
    assert trials["raise"]["error"] == "ValueError: expected another mode"
    assert trials["die"]["error"].startswith("its process ended with SIGKILL")
    directory = Path("train_log/sweep-tiny", f"trial-{trials['good']['number']:04d}")
    run = RunRecord.load(directory)
    assert run["configuration"]["settings"] == {"lr": 0.5, "mode": "good", "epochs": 2}
    assert run["command"] == "towerpack train tiny.py mode=good lr=0.5"
    curve = [x["validation_error"] for x in JSONWriter.load_existing_json(directory)]
    assert trials["good"]["curve"] == curve and trials["good"]["value"] == min(curve)
    assert trials["good"]["link"] == f"{directory.name}/report.html"
    assert (directory / "report.html").exists()
    page = Path("train_log/sweep-tiny/sweep.html")
    page.unlink()
    assert "3 trials -> " in CliRunner().invoke(app, ["report", str(page.parent)]).output
    assert "expected another mode" in page.read_text()
    assert CliRunner().invoke(app, ["runs", "train_log"]).output.count("trial-0") == 1

    again = sweep("mode=raise,good,die", "lr=0.5", "--trials", 9)
    assert again.exit_code == 0 and "best: trial" in again.output
    assert len(read_sweep("train_log/sweep-tiny")["trials"]) == 3  # nothing is trained again


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda x: x.name)
def test_an_interrupted_sweep_continues_its_trial_exactly(number):
    arguments = ["lr=log(0.01,0.1)", "epochs=4", "--trials", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "towerpack", "sweep", "tiny.py", *arguments, "--dir", "broken"],
        env={**os.environ, "WAIT": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    while not Path("waiting").exists():  # in epoch 3; those before are saved
        assert process.poll() is None
        time.sleep(0.1)
    run = RunRecord.load("broken/trial-0000")
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    assert ("is continued by the same command" in output) == (number == signal.SIGINT)
    deadline = time.monotonic() + 30
    while is_alive(run["process"]):  # a trial ends with its sweep
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (trial,) = open_study("broken").trials
    assert trial.state.name == "RUNNING"

    for directory in ("broken", "whole"):
        result = sweep(*arguments, "--dir", directory)
        assert result.exit_code == 0, result.output
    assert "resuming from" in Path("broken/trial-0000/log.log").read_text()
    (broken,), (whole,) = (read_sweep(name)["trials"] for name in ("broken", "whole"))
    assert broken["parameters"] == whole["parameters"]
    assert broken["epoch"] == [1, 2, 3, 4] and broken["curve"] == whole["curve"]
    records = [JSONWriter.load_existing_json(f"{name}/trial-0000") for name in ("broken", "whole")]
    assert [x["validation_error"] for x in records[0]] == [
        x["validation_error"] for x in records[1]
    ]
    assert [x["cost"] for x in records[0]] == [x["cost"] for x in records[1]]


@pytest.mark.slow
def test_without_a_completed_trial_it_fails():
    result = sweep("mode=raise,die", "--trials", 1)
    assert result.exit_code == 1
    assert "error: none of 1 trials was completed; the first one: " in result.output

    result = sweep("lr=log(0.01,0.1)", "--metric", "validation_eror", "--dir", "x", "epochs=1")
    assert result.exit_code == 1
    assert "received 'validation_eror'; the logged ones are 'validation_error', " in result.output
    assert len(open_study("x").trials) == 1  # no other trial could succeed


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (["lrr=log(1e-3,1)"], "received 'lrr'; the nearest are 'lr', "),
        (["lr=log(1e-3,1)", "epoch=3"], "received 'epoch'; the nearest are 'epochs', "),
        (["epochs=uniform(1,3)"], "epochs: expected int, received '1.76393'"),
        (["epochs=1,2,x"], "epochs: expected int, received 'x'"),
        (["lr=log(1e-3)"], "expected log(LOW,HIGH) with numbers"),
        (["lr=0.1,0.2", "--timeout", "3 epochs"], "expected --timeout as a time, such as '8 h'"),
    ],
)
def test_a_bad_space_is_refused_before_any_trial(space, message):
    result = sweep(*space)
    assert result.exit_code == 2 and message in result.output
    assert not Path("train_log/sweep-tiny/trials.journal").exists()


def test_optuna_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    result = sweep("lr=0.1,0.2")
    assert result.exit_code == 1 and "pip install 'towerpack[sweep]'" in result.output


def test_a_different_sweep_in_the_directory_is_refused():
    first = ["lr=0.1,0.2", "--timeout", "0.000001 s"]
    result = sweep(*first)
    assert result.exit_code == 1 and "the time is over" in result.output  # before any trial
    result = sweep("lr=0.1,0.3", "--maximize", *first[1:])
    assert result.exit_code == 1
    assert "its space is ['lr=0.1,0.2'], received ['lr=0.1,0.3']" in result.output
    assert "its maximize is False, received True" in result.output
    Path("tiny.py").write_text(PROGRAM + "\n# changed\n")
    result = sweep(*first)
    assert result.exit_code == 1 and "tiny.py has changed since the trials" in result.output
    result = sweep(*first, "--accept-changed-file")
    assert "the time is over" in result.output
    described = json.loads(Path("train_log/sweep-tiny/sweep.json").read_text())
    assert described["space"] == ["lr=0.1,0.2"]
