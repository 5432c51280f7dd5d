"""Ranks under a real Slurm: found by its environment, ended, requeued and continued by it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.clusters import slurm as cluster
from tests.clusters.running import (
    EPOCHS,
    LAUNCH,
    LINEAR,
    check_linear,
    example,
    only_if_asked,
    records,
    result,
    wait_until,
)

pytestmark = [only_if_asked, *cluster.needs_slurm, pytest.mark.timeout(3600)]
PYTHON = [sys.executable]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with cluster.running(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def reached(directory: Path, epoch: int) -> bool:
    return len(records(directory)) >= epoch


def stopped_after(log: Path) -> int:
    """The step that all ranks finished after a signal."""
    (step,) = set(re.findall(r"training was stopped: SIG.* after step (\d+)", log.read_text()))
    return int(step)


def resumed_at(log: Path) -> int:
    (step,) = re.findall(r"resuming from .* step (\d+)", log.read_text())
    return int(step)


@pytest.mark.parametrize("nodes", [1, 2])
def test_srun_starts_ranks_without_a_launcher(slurm, expected, tmp_path, nodes):
    srun = ["srun", f"--nodes={nodes}", "--ntasks=2"]
    out = slurm(*srun, *PYTHON, *example(tmp_path / "run"))
    assert "rank 1 of 2, found in Slurm step" in out
    assert out.count("validation accuracy:") == 1
    assert result(tmp_path / "run") == expected


@pytest.mark.parametrize(("nodes", "nproc"), [(1, 2), (2, 1)])
def test_srun_starts_a_launcher_per_node(slurm, expected, tmp_path, nodes, nproc):
    srun = ["srun", f"--nodes={nodes}", "--ntasks-per-node=1"]
    out = slurm(*srun, *LAUNCH, f"--nproc={nproc}", *example(tmp_path / "run"))
    assert out.count("validation accuracy:") == 1
    assert ("node 1 of 2, found in Slurm step" in out) == (nodes == 2)
    assert result(tmp_path / "run") == expected


@pytest.mark.parametrize("started_by", ["srun", "launcher"])
def test_a_job_that_scancel_ended_is_continued_by_the_next(slurm, expected, tmp_path, started_by):
    directory = tmp_path / "run"
    ranks = PYTHON if started_by == "srun" else [*LAUNCH, "--log-dir", str(tmp_path / "ranks")]
    command = ["srun", "--ntasks-per-node=1", *ranks, *example(directory)]
    log = tmp_path / "first.log"
    job = slurm.submit(log, 2, command)
    wait_until(lambda: reached(directory, 2), log.read_text)
    slurm("scancel", job)
    slurm.wait_for(job, "CANCELLED", log)
    assert not reached(directory, EPOCHS), "the run was finished before it was cancelled"
    saved = stopped_after(log)
    log = tmp_path / "second.log"
    slurm.wait_for(slurm.submit(log, 2, command), "COMPLETED", log)
    assert resumed_at(log) == saved
    assert result(directory) == expected


@pytest.mark.parametrize("started_by", ["srun", "launcher"])
def test_a_requeued_job_continues(slurm, tmp_path, started_by):
    """The script does not ask for `resume`: Slurm counts how often it started the job."""
    directory, log, epochs = tmp_path / "run", tmp_path / "job.log", 120
    ranks = PYTHON if started_by == "srun" else [*LAUNCH, "--log-dir", str(tmp_path / "ranks")]
    command = ["srun", "--ntasks-per-node=1", *ranks, str(LINEAR), str(directory), str(epochs)]
    job = slurm.submit(log, 2, command, "--requeue", "--open-mode=append")
    wait_until(lambda: reached(directory, 2), log.read_text)
    slurm("scontrol", "requeue", job)
    slurm.wait_for(job, "PENDING", log)
    assert not reached(directory, epochs), "the run was finished before it was requeued"
    slurm("scontrol", "update", f"JobId={job}", "StartTime=now")
    slurm.wait_for(job, "COMPLETED", log)
    assert resumed_at(log) == stopped_after(log)
    assert reached(directory, epochs)
    check_linear(directory)
