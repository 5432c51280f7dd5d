"""The order of the rooms, checked by import-linter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import towerpack
from towerpack._names import ROOMS

ROOT = Path(__file__).parents[2]


def test_import_contracts_hold():
    pytest.importorskip("importlinter", reason="a tool of the lint extra")
    run = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_folder_is_a_room_with_a_docstring():
    package = Path(towerpack.__file__).parent
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    assert folders == set(ROOMS)
    for room in folders:
        first = (package / room / "__init__.py").read_text()[:4]
        assert first.startswith('"""'), f"{room}/__init__.py does not say what the room is"
