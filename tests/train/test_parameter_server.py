"""Training with parameter servers, in real processes that are killed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.train import parameter_server_runs as runs
from tests.train.ranks_of_a_test import run_ranks
from towerpack.checkpoint import SmartInit, load_checkpoint_vars
from towerpack.core.cluster import Cluster, find_cluster
from towerpack.input_source import QueueInput
from towerpack.train import SimpleTrainer

DEADLINE = 240  # seconds, on a machine that is busy with other tests
RANKS = ["-m", "towerpack", "launch", "--nproc", "4", "--servers", "1", "-m"]


def run(directory: Path, program: str, prefix: tuple[str, ...], code: int = 0) -> tuple[dict, str]:
    """The result of a program, and its output; all its processes have ended."""
    command = [sys.executable, *prefix, runs.__name__, program, str(directory)]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        output, _ = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()  # the ranks of a launcher end with it
        process.wait()
    assert process.returncode == code, output[-8000:]
    return json.loads((directory / runs.RESULT).read_text()), output


@pytest.mark.slow
@pytest.mark.timeout(DEADLINE + 60)
def test_run_survives_lost_worker_and_lost_server(tmp_path):
    result, output = run(tmp_path, "launched", tuple(RANKS), code=143)
    assert "--servers" in result["wrong"][0] and "--servers" in result["wrong"][1]
    assert result["devices"] == ["/job:ps/replica:0/task:0/device:CPU:0"]

    counts = [json.loads(line) for line in (tmp_path / runs.COUNTS).read_text().splitlines()]
    first = [row for row in counts if row[0] == 0]
    for _, epoch, *steps in first:  # each step at least once
        assert sum(steps) >= epoch * runs.STEPS
    assert min(first[1][2:]) > 0, "both workers should have trained"
    without = [(a, b) for a, b in pairwise(first) if a[3] == b[3]]
    assert without, "an epoch should have passed without the lost worker"
    assert all(b[2] > a[2] for a, b in without)
    assert first[-1][3] > without[-1][0][3], "the lost worker should have come back"
    assert re.search(r"rank 3 .*\n?.*starts again, by itself", output)

    assert re.search(r"rank 1 on host \S+ was killed by SIGKILL", output)
    assert "resuming from" in output
    assert result["attempt"] == 1
    resumed = next(row for row in counts if row[0] == 1)
    assert first[-1][1] - 1 <= resumed[1] - 1 <= first[-1][1], "it should resume, not begin again"
    assert result["step"] >= counts[-1][1] * runs.STEPS
    assert "SIGTERM: finishing the step, then saving" in output

    x, y = runs.arrays()
    columns = np.column_stack([x, np.ones(len(x))])
    solution, (residual,), *_ = np.linalg.lstsq(columns, y, rcond=None)
    found = [*np.ravel(result["weights"]["fc/W"]), *result["weights"]["fc/b"]]
    np.testing.assert_allclose(found, solution, atol=0.05)
    stats = json.loads((tmp_path / "log" / "stats.json").read_text())
    assert stats[-1]["validation_cost"] < 1.2 * residual / len(x)

    model = runs.Regression()
    trainer = SimpleTrainer()
    trainer.setup_graph(
        model.input_signature, QueueInput(runs.flow()), model.build_graph, model.optimizer
    )
    trainer.initialize(SmartInit(str(tmp_path / "log" / f"model-{result['step']}")))
    (guess,) = trainer.get_predictor(["x"], ["guess"])(x)
    np.testing.assert_allclose(guess, result["guess"], rtol=1e-5, atol=1e-6)
    trainer.close()


@pytest.mark.slow
@pytest.mark.timeout(DEADLINE + 60)
def test_one_process(tmp_path):
    result, output = run(tmp_path, "alone", ("-m",))
    assert "training on one machine" in output
    assert result["every step"] == ["", 20, True]
    assert "PerWorkerInput(dataset_fn)" in result["a flow"] and "BatchData" in result["a flow"]
    assert "in the tower function" in result["made before"]
    assert result["failing"].startswith("InvalidArgumentError") and "made up" in result["failing"]
    assert "fewer files than workers" in result["empty"]
    assert "loss scale" in result["half"]
    assert result["no number"].startswith("NonFiniteCost")
    assert result["no slope"].startswith("NonFiniteWeights: up to step 1")

    # Steps that were under way are part of the checkpoint of a run that stops within an epoch.
    assert result["stopped"] == result["resumed"] == ""
    found = re.search(r"resuming from .*/(model-(\d+)): epoch 1, step (\d+)", output)
    assert found and 30 <= int(found[2]) == int(found[3]) < runs.STEPS
    saved = load_checkpoint_vars(tmp_path / "log" / found[1])
    assert saved["global_step"] == int(found[3]) == saved["steps_of"].sum()


@pytest.mark.slow
def test_servers_end_with_their_chief(tmp_path):
    assert run_ranks(runs.without_supervisor, 3, 20, directory=tmp_path, servers=1)[0] == 20


def test_roles_of_ranks():
    addresses = ("a:1", "a:2", "b:1", "b:2")
    tasks = [Cluster(addresses, rank, "a test", servers=1).task for rank in range(4)]
    assert tasks == [("chief", 0), ("ps", 0), ("worker", 0), ("worker", 1)]
    last = Cluster(addresses, 3, "a test", servers=1)
    assert find_cluster(last.variables()) == Cluster(addresses, 3, "TOWERPACK_CLUSTER", servers=1)
    task = json.loads(last.variables()["TF_CONFIG"])
    assert task["cluster"]["ps"] == ["a:2"] and task["task"] == {"type": "worker", "index": 1}
    assert Cluster(addresses, 3, "a test").task == ("worker", 3)
    with pytest.raises(ValueError, match="at least 5 ranks, a chief, 3 parameter servers and a w"):
        Cluster(addresses, 0, "a test", servers=3)
