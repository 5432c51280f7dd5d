"""F21: workers of a process without stdin, stdout or stderr."""

import os
import subprocess
import sys

import pytest

from towerpack.dataflow.workers.process import START_METHODS

SCRIPT = """
import sys
from towerpack.dataflow import DataFromList, MultiProcessMapData

def twice(datapoint):
    return [datapoint[0] * 2]

numbers = DataFromList([[i] for i in range(20)], shuffle=False)
flow = MultiProcessMapData(numbers, 2, twice, start_method=sys.argv[1])
received = [datapoint[0] for datapoint in flow]
with open(sys.argv[2], "w") as file:
    file.write(repr(received))
"""


@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize("closed", ["2>&-", "<&-", "<&- >&- 2>&-"])
def test_F21_workers_start_with_closed_streams(tmp_path, method, closed):
    (tmp_path / "script.py").write_text(SCRIPT)
    run = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", sys.executable, "script.py", method, "result"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.returncode == 0
    assert (tmp_path / "result").read_text() == repr([2 * i for i in range(20)])
