"""`towerpack train` as its user calls it: mostly as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from towerpack.checkpoint import save_checkpoint
from towerpack.cli import app
from towerpack.core import logger

PROGRAM = """
from dataclasses import dataclass, field
from towerpack import MapData, ModelSaver, MultiProcessMapData, TrainConfig, set_random_seed
from tests.tiny_model import TinyModel, tiny_flow

@dataclass
class Training:
    scale: float = 1.0
    max_epoch: int = 1

@dataclass
class Settings:
    training: Training = field(default_factory=Training)
    seed: int = 0

def get_config(settings: Settings):
    set_random_seed(settings.seed)

    def scaled(dp):  # a worker gets it by value
        return [dp[0] * settings.training.scale, dp[1]]

    return TrainConfig(
        model=TinyModel(),
        dataflow=MultiProcessMapData(tiny_flow(), 1, scaled),
        callbacks=[ModelSaver()],
        max_epoch=settings.training.max_epoch,
    )

if __name__ == "__main__":
    raise SystemExit("must not run")
"""
SCRIPT = """
import argparse, sys
def get_config(): ...
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--resume")
parser.add_argument("rest", nargs="*")
if __name__ == "__main__":
    print(vars(parser.parse_args()), sys.argv[0], sys.warnoptions, sys.path[0])
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "mine.py").write_text(PROGRAM)
    return "mine.py"


def train(*arguments, code=0):
    root = Path(__file__).parents[2]
    command = [sys.executable, "-W", "error", "-m", "towerpack", "train", *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={
            "PYTHONPATH": f"{root}:{root}/src",
            "PATH": "/usr/bin:/bin",
            "CUDA_VISIBLE_DEVICES": "-1",
        },
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def in_process(*arguments):
    return CliRunner().invoke(app, ["train", *arguments])


def stored(directory):
    return json.loads(Path(directory, "run.json").read_text())["configuration"]["settings"]


@pytest.mark.slow
def test_a_run_is_stored_with_its_settings_and_resumes_exactly(program):
    Path("run.json").write_text('{"training": {"scale": 2.0}, "seed": 7}')
    train(program, "--settings", "run.json", "training.scale=0.5")
    settings = {"training": {"scale": 0.5, "max_epoch": 1}, "seed": 7}
    assert stored("train_log/mine") == settings

    log = train(program, "--resume", "train_log/mine", "training.max_epoch=2")
    assert "resuming from" in log
    assert "this run continues with changed settings: training.max_epoch from 1 to 2" in log
    settings["training"]["max_epoch"] = 2
    assert stored("train_log/mine") == settings

    train("--logdir", "whole", program, "training.max_epoch=2", "seed=7", "training.scale=0.5")
    assert stored("whole") == settings
    same = CliRunner().invoke(app, ["ckpt", "diff", "train_log/mine", "whole"])
    assert same.output.strip() == "identical", same.output


def test_a_script_gets_its_arguments_unchanged(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    printed = train("script.py", "--lr", "0.1", "--resume", "x", "a", "--", "-b")
    expected = {"lr": 0.1, "resume": "x", "rest": ["a", "-b"]}
    assert printed.strip() == f"{expected} script.py ['error'] {tmp_path.resolve()}"
    assert "usage: script.py" in train("script.py", "--help")
    assert "usage: script.py" in train("script.py", "--unknown", code=2)


def test_options_before_a_script_are_refused(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    result = in_process("--logdir", "x", "script.py")
    assert result.exit_code == 2 and "so it reads its arguments itself" in result.output


def test_help_lists_the_keys(program):
    result = in_process(program, "--help")
    assert result.exit_code == 0, result.output
    assert "--resume" in result.output
    assert "  training.scale=1.0    float\n  training.max_epoch=1  int\n" in result.output
    assert "--resume" in in_process("--help").output


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["missing.py"], 2, "error: there is no file missing.py"),
        (["{}", "sede=1"], 2, "error: expected a known key in 'sede=1', received 'sede'; the "
                              "nearest are 'seed', 'training'"),
        (["{}", "seed=x"], 2, "error: seed: expected int, received 'x'"),
        (["{}", "--lr", "1"], 2, "No such option"),
        (["{}", "--resume", ".", "--logdir", "x"], 2, "expected --resume or --logdir"),
        (["{}", "--resume", "."], 1, "error: expected the directory of a run of"),
        (["{}", "--resume", "nothing"], 1, "error: expected the directory of a run, received"),
        (["{}", "--settings", "missing.toml"], 1, "missing.toml"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_and_touch_no_directory(arguments, code, words, program):
    result = in_process(*[argument.format(program) for argument in arguments])
    assert result.exit_code == code, result.output
    assert words in result.output
    assert "Traceback" not in result.output
    assert not Path("train_log").exists() and not Path("x").exists()


def test_a_run_without_a_checkpoint_or_with_other_keys_is_not_resumed(program):
    Path("old").mkdir()
    record = {"format": 1, "configuration": {"settings": {"seed": 3, "size": 4}}}
    Path("old/run.json").write_text(json.dumps(record))
    result = in_process(program, "--resume", "old")
    assert result.exit_code == 1 and "there is no checkpoint in old" in result.output
    save_checkpoint({"w": np.ones(3)}, "old/model-1", step=1)
    result = in_process(program, "--resume", "old")
    assert result.exit_code == 2 and "known key in old/run.json, received 'size'" in result.output


def test_a_file_that_sets_another_directory_is_refused():
    Path("mine.py").write_text(
        "from towerpack import TrainConfig, logger\n"
        "from tests.tiny_model import TinyModel, tiny_flow\n"
        "def get_config():\n"
        "    logger.set_logger_dir('theirs')\n"
        "    return TrainConfig(model=TinyModel(), dataflow=tiny_flow())\n"
    )
    result = in_process("mine.py", "--logdir", "mine")
    logger.close_log_file()
    assert result.exit_code == 1
    assert "error: expected the run in mine, but mine.py has set" in result.output


@pytest.mark.parametrize(
    ("line", "keys"), [("config = {}", ["max_epoch=2"]), ("def get_config(): return {}", [])]
)
def test_files_without_settings_of_their_own_resume_too(line, keys):
    config = "TrainConfig(model=TinyModel(), dataflow=tiny_flow(), callbacks=[ModelSaver()], "
    code = "from towerpack import ModelSaver, TrainConfig\nfrom tests.tiny_model import *\n"
    Path("mine.py").write_text(code + line.format(f"{config}max_epoch=1)"))
    first = in_process("mine.py")
    assert first.exit_code == 0, first.output
    if not keys:
        Path("mine.py").write_text(code + line.format(f"{config}max_epoch=2)"))
    second = in_process("mine.py", "--resume", "train_log/mine", *keys)
    logger.close_log_file()
    assert second.exit_code == 0, second.output
    facts = json.loads(Path("train_log/mine/run.json").read_text())
    assert (facts["epoch"], len(facts["sessions"])) == (2, 2)
