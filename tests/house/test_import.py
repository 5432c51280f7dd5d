"""What importing towerpack loads: seen in a fresh interpreter's `sys.modules`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {"tensorflow", "keras", "cv2"}


def modules_after(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after the statement."""
    script = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in json.loads(run.stdout)}


def test_import_towerpack_loads_only_the_standard_library():
    before = modules_after("pass")
    added = modules_after("import towerpack") - before - {"towerpack"}
    assert added <= sys.stdlib_module_names


@pytest.mark.parametrize("room", ["core.logger", "core.tree", "dataflow", "monitor", "cli"])
def test_the_data_half_and_the_command_load_nothing_heavy(room):
    assert not modules_after(f"import towerpack.{room}") & HEAVY


def test_the_purity_test_can_fail():
    assert modules_after("import numpy") >= {"numpy"}


def test_import_starts_no_thread_and_no_process():
    modules_after(
        "import threading, multiprocessing, towerpack.dataflow, towerpack.monitor; "
        "assert threading.active_count() == 1 and not multiprocessing.active_children()"
    )
