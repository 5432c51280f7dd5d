"""The cluster of a process, from every environment that gives one; what a rank reports."""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import time

import pytest

from tests.core.test_schedulers import HYDRA, KUBERNETES, OPEN_MPI, SLURM
from towerpack.core.cluster import (
    BEAT,
    CLUSTER,
    FAILURE,
    FINISHED,
    PROGRESS,
    STACKS_SIGNAL,
    WAITING,
    Cluster,
    Progress,
    find_cluster,
    read_beat,
)
from towerpack.core.schedulers import PORTS_PER_JOB, job_port

ADDRESSES = ("a:1", "b:1", "b:2")


def launched(**changes):
    fields = {"addresses": list(ADDRESSES), "rank": 1, "token": "job-3", "attempt": 3}
    return {CLUSTER: json.dumps(fields | changes)}


def tf_config(roles, kind="worker", index=0):
    return {"TF_CONFIG": json.dumps({"cluster": roles, "task": {"type": kind, "index": index}})}


def test_places():
    clusters = [Cluster(ADDRESSES, rank, "test", "a-b-7", 7) for rank in range(3)]
    assert [cluster.is_chief for cluster in clusters] == [True, False, False]
    assert [cluster.local_rank for cluster in clusters] == [0, 0, 1]
    assert [cluster.local_ranks for cluster in clusters] == [1, 2, 2]
    assert clusters[0].job == "a-b"
    assert Cluster(ADDRESSES, 0, "test").job == ""


def test_none_without_an_environment():
    assert find_cluster({}) is None
    assert find_cluster({CLUSTER: "", "TF_CONFIG": ""}) is None
    assert find_cluster(tf_config({})) is None


def test_the_launcher_decides_before_all_others():
    environ = tf_config({"worker": ["c:1", "d:1"]}) | SLURM | OPEN_MPI
    found = Cluster(ADDRESSES, 1, CLUSTER, "job-3", 3)
    assert find_cluster(environ | launched()) == found
    cluster = find_cluster(environ)
    assert cluster is not None
    assert cluster.source == "TF_CONFIG"


def test_what_a_cluster_passes_on_is_what_is_found():
    cluster = Cluster(ADDRESSES, 2, "towerpack launch", "job-1", 1)
    variables = cluster.variables()
    assert find_cluster(variables) == Cluster(ADDRESSES, 2, CLUSTER, "job-1", 1)
    del variables[CLUSTER]
    found = find_cluster(variables)
    assert found is not None
    assert (found.addresses, found.rank) == (ADDRESSES, 2)


def test_the_chief_of_TF_CONFIG_is_the_first_rank():
    roles = {"worker": ["b:1", "c:1"], "chief": ["a:1"]}
    ranks = [("chief", 0), ("worker", 0), ("worker", 1)]
    found = [find_cluster(tf_config(roles, kind, index)) for kind, index in ranks]
    assert [each.rank for each in found] == [0, 1, 2]
    assert {each.addresses for each in found} == {("a:1", "b:1", "c:1")}
    assert len({each.token for each in found}) == 1


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({CLUSTER: "{"}, "TOWERPACK_CLUSTER: expected JSON, received '{'"),
        ({CLUSTER: "[]"}, "expected a JSON object"),
        ({CLUSTER: "{}"}, "expected 'addresses'"),
        (launched(rank="1"), "expected 'addresses'"),
        (launched(rank=True), "expected 'addresses'"),
        (launched(other=1), "expected 'addresses'"),
        (launched(rank=3), "expected a rank from 0 to 2, since there are 3 addresses, received 3"),
        (launched(rank=-1), "expected a rank from 0 to 2"),
        (launched(addresses=["a:1", "b"]), "expected HOST:PORT, received 'b'"),
        (launched(addresses=["a:1", "b:0"]), "expected HOST:PORT"),
        (launched(addresses=["a:1", "b:65536"]), "expected HOST:PORT"),
        (launched(addresses=["a:1", 7]), "expected HOST:PORT, received 7"),
        (launched(addresses=["a:1", "a:1"]), "received a:1 more than once; give each rank its ow"),
        ({"TF_CONFIG": "x"}, "TF_CONFIG: expected JSON"),
        (tf_config({"worker": ["a:1"], "ps": ["b:1"]}), "chief and worker, received ps"),
        (tf_config({"worker": ["a:1"], "evaluator": ["b:1"]}), "in a callback of the chief"),
        (tf_config({"worker": ["a:1"]}, "chief"), "expected a task of"),
        (tf_config({"worker": ["a:1"]}, "worker", 1), "set 'type' and 'index'"),
        (tf_config({"worker": ["a:1"]}, "worker", "0"), "expected a task of"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, "expected a task of"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "to learn the hosts of all 2 ranks"),
        (HYDRA | {"PMI_RANK": "2"}, "expected a rank from 0 to 1, received 2"),
    ],
)
def test_what_cannot_be_right_is_refused(environ, words):
    with pytest.raises(ValueError, match=words):
        find_cluster(environ)


def test_slurm():
    port = job_port("4711.2")
    cluster = find_cluster(SLURM | {"SLURM_RESTART_COUNT": "1"})
    addresses = (f"n1:{port}", f"n1:{port + 1}", f"n2:{port}")
    assert cluster == Cluster(addresses, 2, "Slurm step 4711.2", "4711.2-1", 1)
    assert cluster.job == "4711.2"


def test_mpirun_on_one_machine():
    port = job_port(OPEN_MPI["PMIX_NAMESPACE"])
    cluster = find_cluster(OPEN_MPI)
    assert cluster is not None
    assert cluster.addresses == (f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}")
    assert cluster.rank == 1


def test_kubernetes():
    cluster = find_cluster(KUBERNETES)
    assert cluster is not None
    assert cluster.addresses == ("my-job-0.train:12000", "my-job-1.train:12000")


def test_more_ranks_on_a_host_than_a_job_has_ports():
    many = str(PORTS_PER_JOB + 1)
    environ = OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": many, "OMPI_COMM_WORLD_LOCAL_SIZE": many}
    with pytest.raises(
        ValueError, match=f"at most {PORTS_PER_JOB} ranks per host, received {many}"
    ):
        find_cluster(environ)


def test_this_cluster_is_not_that_of_processes_that_it_starts():
    code = """
import os, subprocess, sys
from towerpack.core.cluster import is_chief, this_cluster
cluster = this_cluster()
print(cluster.rank if cluster else None, is_chief(), this_cluster() is cluster)
if len(sys.argv) == 1:
    sys.stdout.flush()
    subprocess.run([sys.executable, __file__, "nested"], check=True)
"""
    with open("script.py", "w") as file:
        file.write(code)
    environ = os.environ | Cluster(ADDRESSES, 1, "").variables()
    run = subprocess.run(
        [sys.executable, "script.py"], env=environ, capture_output=True, text=True, check=True
    )
    assert run.stdout == "1 False True\nNone True True\n"


def test_progress_writes_the_last_step(tmp_path):
    path = tmp_path / "beats"
    path.write_bytes(bytes(BEAT.size))
    assert read_beat(path) is None
    environ = {PROGRESS: str(path), FAILURE: str(tmp_path / "failure"), "OTHER": "x"}
    progress = Progress(environ)
    assert environ == {"OTHER": "x"}
    progress.keep_alive()
    with progress.waiting():
        assert read_beat(path) is None  # its first step has not come
    before = time.monotonic()
    for step in (1, 2**40):
        progress.beat(step)
        found = read_beat(path)
        assert found is not None
        assert found[0] == step
        assert before <= found[1] <= time.monotonic()
    with progress.waiting():  # for other ranks, so it is not watched
        assert read_beat(path)[0] == WAITING
    assert read_beat(path)[0] == step
    progress.finish()
    assert read_beat(path)[0] == FINISHED
    assert path.stat().st_size == BEAT.size
    os.close(progress._file)
    assert faulthandler.unregister(STACKS_SIGNAL)  # it prints stacks


def test_a_failure_is_written_at_once_or_logged(tmp_path, capsys):
    path = tmp_path / "failure"
    try:
        raise ValueError("the reason")
    except ValueError as error:
        Progress({FAILURE: str(path)}).report_failure(error, secondary=True)
        report = json.loads(path.read_text())
        assert report["secondary"] is True
        assert report["traceback"].startswith("Traceback (most recent call last):\n")
        assert report["traceback"].endswith("ValueError: the reason\n")
        assert list(tmp_path.iterdir()) == [path]
        Progress({FAILURE: "/proc/none/failure"}).report_failure(error, secondary=False)
        Progress({}).report_failure(error, secondary=False)


def test_without_a_supervisor_nothing_happens():
    progress = Progress({})
    progress.beat(1)
    progress.finish()


def test_a_rank_that_waits_for_others_has_no_deadline(tmp_path):
    """One of the others is slow, and its own beats show that it makes progress."""
    path = tmp_path / "beats"
    path.write_bytes(bytes(BEAT.size))
    progress = Progress({PROGRESS: str(path)})
    with progress.waiting():
        assert read_beat(path) is None  # before the first step
    progress.keep_alive()
    assert read_beat(path) is None
    progress.beat(7)
    _, before = read_beat(path)
    with progress.waiting():
        assert read_beat(path)[0] == WAITING
    step, after = read_beat(path)
    assert step == 7 and after > before
    progress.keep_alive()
    assert read_beat(path) > (step, after)
