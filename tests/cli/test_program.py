"""Which files are programs, and what is made from them."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import typer

from towerpack.cli.program import is_program, load_program
from towerpack.core.settings import REQUIRED, list_keys, read_settings
from towerpack.train import SimpleTrainer

HEAD = """
from dataclasses import dataclass
from tests.tiny_model import TinyModel, tiny_flow
from towerpack.train import SimpleTrainer, TrainConfig, launch_train_with_config

"""
MAKE = "TrainConfig(model=TinyModel(), dataflow=tiny_flow(), max_epoch=2)"


@pytest.fixture
def write(tmp_path):
    def write(code, name="mine.py"):
        path = tmp_path / name
        path.write_text(code)
        return path

    return write


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def get_config(): ...", True),
        ("config = 1", True),
        ("config: int = 1", True),
        ("from configs import small as get_config", True),
        ("from configs import get_config", True),
        ("from configs import config", False),
        ("class A:\n  def get_config(self): ...", False),
        ("def main():\n  config = 1", False),
        ("import argparse\ndef get_config(): ...", False),
        ("from argparse import ArgumentParser\nconfig = 1", False),
        ("config = 1\nlaunch_train_with_config(config, 2)", False),
        ("config = 1\nwith t as x:\n  x.train_with_defaults()", False),
        ("config = 1\nif __name__ == '__main__':\n  tp.launch_train_with_config(config, 2)", True),
        ("config = 1\ndef main():\n  launch_train_with_config(config, 2)", True),
        ("", False),
    ],
)
def test_a_program_defines_a_config_and_does_not_run_by_itself(write, code, expected):
    assert is_program(write(code)) is expected


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("a.py", "def f(:", "is not a Python file"),
        ("a.py", "\0", "is not a Python file"),
        ("a.txt", "", "expected a Python file, FILE.py"),
        ("a.py", "print('hello')", "to define get_config or config"),
    ],
)
def test_other_files_are_refused(write, name, code, words):
    with pytest.raises(typer.BadParameter, match=words):
        load_program(write(code, name))
    with pytest.raises(typer.BadParameter, match="there is no file"):
        load_program(write(code, name).with_name("missing.py"))


def test_get_config_with_a_dataclass(write):
    path = write(
        HEAD + "@dataclass\nclass Mine:\n  lr: float\n  units: int = 3\n"
        f"def get_config(settings: Mine):\n  return {MAKE}, SimpleTrainer(jit=False)\n"
    )
    program = load_program(path)
    assert list(list_keys(program.settings)) == [("lr", "float", REQUIRED), ("units", "int", 3)]
    settings = read_settings(program.settings, overrides=["lr=1"])
    config, trainer = program.make(settings)
    assert asdict(config.settings) == {"lr": 1.0, "units": 3}
    assert config.max_epoch == 2 and isinstance(trainer, SimpleTrainer)
    assert program.make(settings)[0] is not config


def test_get_config_with_parameters(write):
    path = write(HEAD + f"def get_config(lr=0.1, *, units: int = 3):\n  print(lr)\n  return {MAKE}")
    program = load_program(path)
    config, trainer = program.make(read_settings(program.settings, overrides=["units=5"]))
    assert asdict(config.settings) == {"lr": 0.1, "units": 5}
    assert isinstance(trainer, SimpleTrainer)


def test_a_default_of_the_dataclass_is_the_default_of_the_run(write):
    path = write(
        HEAD + "@dataclass\nclass Mine:\n  lr: float = 1.0\n"
        "def get_config(settings: Mine = Mine(lr=0.5)): ...\n"
    )
    assert list(list_keys(load_program(path).settings)) == [("lr", "float", 0.5)]


def test_a_config_and_its_trainer(write):
    program = load_program(write(f"{HEAD}config = {MAKE}\ntrainer = SimpleTrainer()"))
    settings = read_settings(program.settings, overrides=["steps_per_epoch=7"])
    config, trainer = program.make(settings)
    assert (config.max_epoch, config.steps_per_epoch) == (2, 7)
    assert isinstance(trainer, SimpleTrainer)
    assert asdict(settings) == {"max_epoch": 2, "steps_per_epoch": 7, "starting_epoch": 1}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("config = 5", "expected config in .* to be a TrainConfig, received 5"),
        ("def get_config(*sizes): ...", "expected parameters with names"),
        ("def get_config(): return 5", "to give a TrainConfig, or .* received 5"),
        ("class get_config: ...\nconfig = 1", "to be a function, received <class"),
    ],
)
def test_what_is_no_config_is_refused(write, code, words):
    with pytest.raises(TypeError, match=words):
        program = load_program(write(code))
        program.make(read_settings(program.settings))
