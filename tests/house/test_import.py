"""What importing towerpack loads, according to `sys.modules` of a new interpreter."""

from __future__ import annotations

import json
import os
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


def test_the_command_loads_no_numpy():
    assert "numpy" not in modules_after("import towerpack.cli")


def test_the_purity_test_can_fail():
    assert modules_after("import numpy") >= {"numpy"}


def test_import_starts_no_thread_and_no_process():
    modules_after(
        "import threading, multiprocessing, towerpack.dataflow, towerpack.monitor; "
        "assert threading.active_count() == 1 and not multiprocessing.active_children()"
    )


def stderr_of(script: str, **environment: str) -> str:
    # Without what this process has set for its own TensorFlow.
    ours = ("TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS")
    inherited = {key: value for key, value in os.environ.items() if key not in ours}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**inherited, **environment},
    )
    return run.stderr


def test_tensorflow_loads_without_a_line_and_other_lines_are_kept():
    assert stderr_of("import towerpack.tower") == ""
    script = (
        "import os, towerpack._tensorflow as t\n"
        "with t.without_chatter():\n"
        "    os.write(2, b'I0000 00:00 port.cc:1] a note\\nE0000 an error\\nlast')\n"
    )
    assert stderr_of(script) == "E0000 an error\nlast"


def test_tensorflow_loads_with_stderr_closed():
    stderr_of("import os; os.close(2); import towerpack.tower; os.open('/dev/null', os.O_WRONLY)")


def test_importing_tensorflow_first_is_no_warning():
    script = (
        "import tensorflow; import towerpack.tower; import towerpack._tensorflow as t; "
        "import sys; print('oneDNN:', t.onednn_is_on(), file=sys.stderr)"
    )
    written = stderr_of(script, TF_CPP_MIN_LOG_LEVEL="3")
    assert "WRN" not in written and "warn" not in written.replace("absl", "").split("]")[-1]
    if "oneDNN: True" in written:
        assert "towerpack" not in written
    off = stderr_of(script, TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")
    assert off == "oneDNN: False\n"  # the user's own choice


def test_ckpt_ls_needs_no_tensorflow(tmp_path):
    import numpy as np

    from towerpack.checkpoint import save_checkpoint

    save_checkpoint({"w": np.ones(3)}, tmp_path / "model-1", step=1)
    loaded = modules_after(
        "from towerpack.cli import app; from typer.testing import CliRunner; "
        f"found = CliRunner().invoke(app, ['ckpt', 'ls', {str(tmp_path)!r}]); "
        "assert 'model-1' in found.output, found.output"
    )
    assert not loaded & HEAVY
