"""A sweep over the settings of the example finds the better ones."""

import re
from pathlib import Path

import pytest

from tests.examples.test_examples import run


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_sweep_of_digits_finds_the_better_learning_rate():
    space = ["optimizer.lr=3e-3,1e-5", "max_epoch=2"]
    log = run("settings/digits.py", *space, launch=["-m", "towerpack", "sweep"])
    assert "all 2 combinations of the space were tried" in log
    (error,) = re.findall(r"^best: trial \d, validation_error (\S+)$", log, re.MULTILINE)
    assert float(error) < 0.15
    assert re.search(r"towerpack train \S+digits.py optimizer.lr=3e-3 max_epoch=2", log)
    assert Path("train_log/sweep-digits/sweep.html").exists()
