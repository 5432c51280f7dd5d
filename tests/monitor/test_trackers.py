"""The bridges to trackers, against the real packages without a network.

`make test-trackers` installs them in an environment of their own and runs this file, with
`TOWERPACK_TRACKERS` set: then nothing is left out. Elsewhere a package that is not there is.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import zipfile

import pytest

SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from towerpack.monitor import *
monitor = {monitor}
monitors = Monitors([monitor])
monitors.open(RunInfo(Path("run").absolute(), configuration={{"batch": 8, "model": object}}))
monitors.put_hyperparameters({{"rate": 0.1, "layers": [1, 2]}})
for step in (1, 2, 3):
    monitors.at(step, 1)
    monitors.put_scalar("cost", 1.0 / step)
    monitors.put_scalar("val:error", 0.5)
monitors.put_image("digits", np.zeros([2, 8, 8, 3]))
monitors.put_histogram("weights", np.arange(10.0))
monitors.put_text("note", "some *text*")
monitors.flush()
{after}
monitors.close()
"""


# The format of LevelDB's log: blocks with pieces of records. New wandb has no reader of its own.
READ_WANDB = """
import struct, sys
from pathlib import Path
from wandb.proto import wandb_internal_pb2 as messages

BLOCK, HEAD, WHOLE, LAST = 32768, 7, 1, 4
data, place, record = Path(sys.argv[1]).read_bytes(), HEAD, b""
while place + HEAD <= len(data):
    if BLOCK - place % BLOCK < HEAD:  # the rest of a block that is too short for a piece
        place += BLOCK - place % BLOCK
        continue
    _, length, kind = struct.unpack("<IHB", data[place : place + HEAD])
    record += data[place + HEAD : place + HEAD + length]
    place += HEAD + length
    if kind in (WHOLE, LAST):
        message, record = messages.Record.FromString(record), b""
        for item in message.history.item:
            key = item.key or "/".join(item.nested_key)
            print(message.history.step.num, key, item.value_json)
"""


def need(package):
    if "TOWERPACK_TRACKERS" in os.environ:
        importlib.import_module(package)
    else:
        pytest.importorskip(package, reason="comes with the extra trackers: make test-trackers")


def run(tmp_path, monitor, after="", **environment):
    """In a process of its own: these packages start threads, and change what they find."""
    (tmp_path / "run").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(monitor=monitor, after=after)],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.slow
def test_wandb_offline(tmp_path):
    need("wandb")
    run(tmp_path, 'WandbMonitor(mode="offline", project="test")', WANDB_SILENT="true")
    (record,) = tmp_path.glob("run/wandb/offline-run-*/run-*.wandb")
    read = subprocess.run(
        [sys.executable, "-c", READ_WANDB, record], capture_output=True, text=True, check=True
    )
    lines = read.stdout.splitlines()
    assert [line for line in lines if " cost " in line] == [
        "1 cost 1.0" if "1 cost 1.0" in lines else "1 cost 1",
        "2 cost 0.5",
        f"3 cost {1 / 3}",
    ]
    assert any("digits" in line for line in lines) and any("weights" in line for line in lines)


@pytest.mark.slow
def test_mlflow_with_files(tmp_path):
    need("mlflow")
    store = tmp_path / "store"
    run(
        tmp_path,
        f"MLflowMonitor(experiment='test', tracking_uri={store.as_uri()!r})",
        MLFLOW_ALLOW_FILE_STORE="true",
    )
    (metric,) = store.glob("*/*/metrics/cost")
    assert [line.split()[1:] for line in metric.read_text().splitlines()] == [
        ["1.0", "1"],
        ["0.5", "2"],
        [str(1 / 3), "3"],
    ]
    home = metric.parents[1]
    assert (home / "metrics" / "val_error").exists()
    assert (home / "params" / "rate").read_text() == "0.1"
    assert "end_time" in (home / "meta.yaml").read_text()
    assert len(list(home.glob("artifacts/images/digits/*.png"))) == 2


@pytest.mark.slow
def test_comet_offline(tmp_path):
    need("comet_ml")
    run(
        tmp_path,
        "CometMLMonitor(tags=['test'], online=False, project_name='test', disabled=False)",
        COMET_API_KEY="none",
        COMET_DISABLE_AUTO_LOGGING="1",
        HOME=str(tmp_path),
    )
    (archive,) = tmp_path.glob("run/*.zip")
    with zipfile.ZipFile(archive) as content:
        messages = [
            json.loads(line)
            for line in content.read("messages.json").decode().splitlines()
            if line.strip()
        ]
    metrics = [
        (x["payload"]["metric"]["metricName"], x["payload"]["metric"]["metricValue"])
        for x in messages
        if x["type"] == "metric_msg"
    ]
    assert [value for name, value in metrics if name == "cost"] == [1.0, 0.5, 1 / 3]


@pytest.mark.parametrize(
    ("make", "package"),
    [("CometMLMonitor()", "comet_ml"), ("WandbMonitor()", "wandb"), ("MLflowMonitor()", "mlflow")],
)
def test_without_the_package_the_extra_is_named(make, package):
    script = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"from towerpack.monitor import *\n{make}.open(RunInfo(None))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "pip install 'towerpack[trackers]'" in done.stderr, done.stderr
