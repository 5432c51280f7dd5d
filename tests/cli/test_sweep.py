"""`towerpack sweep`: real trials in processes of their own, failures, kills, and refusals."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from optuna.trial import TrialState
from typer.testing import CliRunner

from towerpack.cli import app, trial
from towerpack.cli.search_space import parse_space
from towerpack.cli.sweep_run import Sweep
from towerpack.core import logger
from towerpack.monitor import JSONWriter, RunRecord
from towerpack.monitor.environment import is_alive
from towerpack.report.sweep import load_sweep, open_study, read_sweep, running_trial
from towerpack.train import NonFiniteCost, NonFiniteWeights

pytestmark = pytest.mark.timeout(300)  # several processes that import TensorFlow
ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, signal, time
from pathlib import Path
from tests.tiny_model import TinyModel, tiny_flow
from towerpack import (
    CallbackFactory, ClassificationError, InferenceRunner, ModelSaver, TrainConfig, optimizer
)

def wait_for_signal(callback):
    if str(callback.epoch_num) == os.environ.get("WAIT"):
        Path(f"in-epoch-{callback.epoch_num}").touch()
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
            CallbackFactory(trigger=wait_for_signal),
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
def test_F28_trials_that_fail_do_not_end_the_sweep():
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


def interrupt(number, epoch, *arguments):
    """Starts a sweep and sends it a signal in an epoch; waits until its trial has ended, too."""
    process = subprocess.Popen(
        [sys.executable, "-m", "towerpack", "sweep", "tiny.py", *arguments],
        env={**os.environ, "WAIT": str(epoch)},
        stdout=subprocess.PIPE,
        text=True,
    )
    while not Path(f"in-epoch-{epoch}").exists():
        assert process.poll() is None
        time.sleep(0.1)
    run = RunRecord.load("broken/trial-0000")
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    deadline = time.monotonic() + 30
    while is_alive(run["process"]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return process.returncode, output


@pytest.mark.slow
def test_F28_an_interrupted_sweep_continues_its_trial_exactly():
    arguments = ["lr=log(0.01,0.1)", "epochs=5", "--trials", "1"]
    code, output = interrupt(signal.SIGINT, 2, *arguments, "--dir", "broken")
    assert code == 130 and "is continued by the same command" in output
    code, output = interrupt(signal.SIGKILL, 4, *arguments, "--dir", "broken")
    assert (code, output) == (-signal.SIGKILL, "")
    (interrupted,) = open_study("broken").trials
    assert interrupted.state == TrialState.RUNNING

    for directory in ("broken", "whole"):
        result = sweep(*arguments, "--dir", directory)
        assert result.exit_code == 0, result.output
    assert "resuming from" in Path("broken/trial-0000/log.log").read_text()
    (broken,), (whole,) = (read_sweep(name)["trials"] for name in ("broken", "whole"))
    assert broken["parameters"] == whole["parameters"]
    assert broken["epoch"] == [1, 2, 3, 4, 5] and broken["curve"] == whole["curve"]
    records = [JSONWriter.load_existing_json(f"{name}/trial-0000") for name in ("broken", "whole")]
    costs = [[x["cost"] for x in each] for each in records]
    assert costs[0] == costs[1] and len(costs[0]) == 5


def test_a_trial_that_diverges_is_pruned_so_that_the_sampler_learns_from_it(monkeypatch):
    sweep("lr=1e38,2e38", "--timeout", "0.000001 s")
    directory = Path("train_log/sweep-tiny")
    found = Sweep(directory, parse_space(["lr=1e38,2e38"]), load_sweep(directory))
    number = found.next_trial(1, math.inf)
    monkeypatch.setattr(sys, "argv", sys.argv)  # which a trial changes
    with pytest.raises((NonFiniteCost, NonFiniteWeights)):
        trial.main(directory, number)
    (diverged,) = read_sweep(directory)["trials"]
    assert diverged["state"] == "pruned" and diverged["error"].startswith("NonFinite")


@pytest.mark.slow
def test_a_metric_that_runs_do_not_log():
    result = sweep("lr=log(0.01,0.1)", "epochs=1", "--metric", "validation_eror")
    assert result.exit_code == 1
    assert "received 'validation_eror'; the logged ones are 'validation_error', " in result.output
    assert len(open_study("train_log/sweep-tiny").trials) == 1  # no other trial could succeed


def test_without_a_completed_trial_it_is_an_error():
    sweep("mode=good,raise", "--timeout", "0.000001 s")
    directory = Path("train_log/sweep-tiny")
    found = Sweep(directory, parse_space(["mode=good,raise"]), load_sweep(directory))
    found.print_best()  # the time was over before the first trial
    number = found.next_trial(1, math.inf)
    running_trial(found.study, number).set_user_attr("error", "ValueError: bad")
    found.study.tell(number, state=TrialState.FAIL)
    with pytest.raises(RuntimeError, match="none of 1 trials was completed; the first: ValueError"):
        found.print_best()


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
    assert result.exit_code == 0 and "the time is over" in result.output  # before any trial
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
