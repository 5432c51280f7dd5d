"""The targets of the Makefile, and how it runs the tests."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def make(*arguments: str) -> str:
    run = subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return run.stdout


def test_plain_make_lists_every_public_target():
    listed = set(re.findall(r"^  make ([a-z-]+) +\S", make(), re.MULTILINE))
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony and listed == set(phony[1].split())


def test_make_test_goes_from_quick_to_slow():
    plan = make("--dry-run", "--always-make", "test")
    steps = ["ruff check", "mypy", "lint-imports", "-data/bin/python ", "'not slow", "'slow"]
    places = [plan.index(step) for step in steps]
    assert places == sorted(places)


def test_a_test_that_fails_is_not_run_again():
    plan = make("--dry-run", "--always-make", "test", "SEED=7", "WORKERS=4")
    runs = [line for line in plan.replace("\\\n", " ").splitlines() if "-m pytest" in line]
    assert len(runs) == 3
    for run in runs:
        assert "-n 4 " in run and "--randomly-seed 7 --hypothesis-seed 7" in run
        assert "last-failed" not in run and "||" not in run
