"""The example whose settings are a dataclass, as `towerpack train` runs it."""

import json
import re
from pathlib import Path

from tests.examples.test_examples import EXAMPLES, run
from towerpack import read_settings
from towerpack.cli.program import load_program


def test_digits_reach_their_accuracy_with_settings_of_the_command_line():
    launch = ["-m", "towerpack", "train"]
    log = run("settings/digits.py", "units=[128]", "optimizer.lr=3e-3", launch=launch)
    errors = re.findall(r"validation_error (\S+)", log)
    assert len(errors) == 5 and float(errors[-1]) < 0.08
    stored = json.loads(Path("train_log/digits/run.json").read_text())["configuration"]["settings"]
    assert (stored["units"], stored["optimizer"]) == ([128], {"name": "adam", "lr": 0.003})


def test_the_file_beside_it_fits_its_settings():
    directory = EXAMPLES / "settings"
    found = read_settings(load_program(directory / "digits.py").settings, directory / "large.toml")
    assert (found.units, found.optimizer.name, found.optimizer.lr) == ((256, 128), "adam", 5e-4)
