"""The `towerpack` command, as a shell runs it."""

from __future__ import annotations

import re
import subprocess
import sys

import towerpack


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "towerpack", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_version_is_written_in_one_place():
    answer = run("--version")
    assert (answer.returncode, answer.stdout) == (0, f"towerpack {towerpack.__version__}\n")


def test_without_arguments_it_lists_the_commands():
    text = run().stdout + run().stderr
    assert re.search(r"\bdemo\b", text) and re.search(r"\benv\b", text)


def test_an_unknown_command_is_refused():
    answer = run("dmeo")
    assert answer.returncode == 2 and "demo" in answer.stderr


def test_env_says_what_a_bug_report_needs():
    answer = run("env")
    assert answer.returncode == 0, answer.stderr
    keys = [line.split(":")[0] for line in answer.stdout.splitlines()]
    assert keys[:5] == ["towerpack", "python", "system", "cpu", "memory"]
    assert {"numpy", "msgspec"} <= set(keys)
