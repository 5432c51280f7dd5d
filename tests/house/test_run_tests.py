"""`scripts/run_tests.sh`: a second try for what may be the machine's fault, and said so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "run_tests.sh"

UNSTABLE = """
    from pathlib import Path

    def test_it():
        tried = Path(__file__).with_name("tried")
        again, _ = tried.exists(), tried.touch()
        assert again, "the first time"

    def test_another():
        with Path(__file__).with_name("runs of another").open("a") as file:
            file.write("x")
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "pytest.ini").touch()  # its own root, cache and configuration

    def run(code: str) -> subprocess.CompletedProcess:
        lines = [line.removeprefix("    ") for line in code.splitlines()]
        (tmp_path / "test_these.py").write_text("\n".join(lines))
        # Not as a worker of the pytest that runs this.
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        command = [SCRIPT, sys.executable, "test_these.py"]
        return subprocess.run(
            command, cwd=tmp_path, env=env | {"WORKERS": "1"}, capture_output=True, text=True
        )

    return run


def test_what_passes_is_run_once(run):
    done = run("    def test_it(): pass")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("1 passed") == 1 and "UNSTABLE" not in done.stdout


def test_what_passes_alone_is_named_and_the_others_are_not_run_again(run, tmp_path):
    done = run(UNSTABLE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "AssertionError: the first time" in done.stdout and "UNSTABLE" in done.stdout
    assert (tmp_path / "runs of another").read_text() == "x"


def test_what_fails_twice_fails(run):
    done = run("    def test_it(): assert 0")
    assert done.returncode == 1 and "UNSTABLE" not in done.stdout
    assert done.stdout.count("1 failed") == 2


def test_what_cannot_be_collected_fails(run):
    done = run("    import nowhere_to_be_found")
    assert done.returncode != 0 and "UNSTABLE" not in done.stdout
    assert "ModuleNotFoundError" in done.stdout
