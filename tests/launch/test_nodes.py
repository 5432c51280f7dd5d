"""Which node this is, by the options and by the scheduler."""

from __future__ import annotations

import pytest

from towerpack.core.schedulers import job_port
from towerpack.launch.nodes import Node, find_node

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
SHELL = SLURM | {
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}
MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "x"}


def find(count=None, rank=None, rendezvous=None, environ=None):
    return find_node(count, rank, rendezvous, "train", environ or {})


def test_one_node_without_options_and_scheduler():
    assert find() == find(1) == find(1, 0) == find(1, 0, "a:1") == Node()


def test_by_hand():
    assert find(3, 2, "a:1") == Node(2, 3, "a:1", "train")
    assert find(2, 0, "[::1]:1") == Node(0, 2, "[::1]:1", "train")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((2,), "expected --node-rank from 0 to 1 and --rendezvous HOST:PORT"),
        ((2, 0), "expected --node-rank from 0 to 1"),
        ((2, None, "a:1"), "expected --node-rank from 0 to 1"),
        ((2, 2, "a:1"), "received --node-rank 2"),
        ((1, 1, "a:1"), "received --node-rank 1"),
        ((2, 1, "a"), "expected HOST:PORT, received 'a'"),
        ((2, 1, "a:0"), "expected HOST:PORT"),
        ((2, 1, ":5"), "expected HOST:PORT"),
        # Each of them would train alone.
        ((None, 1, "a:1"), "expected --nnodes"),
        ((None, None, "a:1"), "expected --nnodes"),
    ],
)
def test_options_that_cannot_be(arguments, words):
    with pytest.raises(ValueError, match=words):
        find(*arguments)


def test_by_slurm():
    port = job_port("7.0")
    assert find(environ=SLURM) == Node(1, 2, f"n1:{port}", "7.0")
    assert find(2, 1, "n1-fast:5", SLURM) == Node(1, 2, "n1-fast:5", "7.0")
    with pytest.raises(ValueError, match="--nnodes: expected 2, which Slurm step 7.0 gives, recei"):
        find(3, environ=SLURM)
    with pytest.raises(ValueError, match=r"--node-rank: expected 1.*leave --node-rank out"):
        find(2, 0, environ=SLURM)


def test_a_shell_in_a_slurm_step_is_one_node_unless_the_options_say_more():
    assert find(environ=SHELL) == Node()
    assert find(2, 1, "n1:5", SHELL) == Node(1, 2, "n1:5", "train")


def test_a_job_of_several_nodes_that_was_started_on_one_is_reported(capsys):
    assert find(environ={"SLURM_JOB_NUM_NODES": "4"}) == Node()
    assert "this Slurm job has 4 nodes" in capsys.readouterr().err


def test_mpirun_needs_the_rendezvous():
    with pytest.raises(ValueError, match="--rendezvous HOST:PORT"):
        find(environ=MPI)
    assert find(rendezvous="a:1", environ=MPI) == Node(1, 2, "a:1", "x")
