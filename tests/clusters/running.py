"""The example of docs/distributed.md as the tests of schedulers run it, and what it returned."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towerpack.checkpoint import load_checkpoint_vars

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "distributed.py"
LAUNCH = [sys.executable, "-m", "towerpack", "launch"]
LINEAR = Path(__file__).with_name("linear.py")
EPOCHS = 12
SECONDS = 900.0  # for anything that is sure to happen, on a machine as busy as it may be

# `make test-clusters` installs what the tests need, and sets the variable.
only_if_asked = pytest.mark.skipif(
    "TOWERPACK_CLUSTERS" not in os.environ, reason="only `make test-clusters` runs it"
)


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [name for name in programs if shutil.which(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed")


def example(directory: Path, epochs: int = EPOCHS) -> list[str]:
    """The script and its arguments: the run of `directory`."""
    return [str(EXAMPLE), "--logdir", str(directory), "--epochs", str(epochs)]


def run(command: Sequence[str], environ: Mapping[str, str] | None = None) -> str:
    """Runs a program to its end, and returns what it printed, errors included."""
    done = subprocess.run(
        command,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def wait_until(condition: Callable[[], Any], what: Callable[[], str] = str) -> None:
    """Waits for something that is sure to happen; `what` describes what there is instead."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


def records(directory: Path) -> list[dict[str, Any]]:
    """What the chief has recorded after each epoch so far."""
    path = directory / "stats.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def result(directory: Path) -> tuple[int, float, float]:
    """The last step of a run, and two numbers that every earlier step has influenced."""
    last = records(directory)[-1]
    return last["global_step"], last["cost"], last["validation_error"]


def check_linear(directory: Path) -> None:
    """Fails unless a run of `linear.py` has the weights of one process that nothing disturbed.

    Compared after the last epoch of the run, so that no batch was lost or repeated until then.
    """
    trained = records(directory)
    assert [record["epoch_num"] for record in trained] == list(range(1, len(trained) + 1))
    alone = directory.with_name(f"{directory.name}-alone")
    run([sys.executable, str(LINEAR), str(alone), str(len(trained))])
    name = f"model-{trained[-1]['global_step']}"
    weights, expected = (load_checkpoint_vars(path / name) for path in (directory, alone))
    for each in ("fc/W", "fc/b"):
        np.testing.assert_allclose(weights[each], expected[each], atol=1e-5)
