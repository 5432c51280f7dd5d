import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)  # a minute of work, on a machine that others use too
def test_callbacks_on_two_towers_do_what_they_do_on_one(tmp_path):
    command = [sys.executable, "-m", "tests.callbacks.two_towers", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
