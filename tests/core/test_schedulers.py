"""The places that Slurm, MPI and Kubernetes give, from the variables that they set."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from towerpack.core.schedulers import (
    DECISIVE,
    FIRST_PORT,
    JOBS,
    PORTS_PER_JOB,
    Place,
    expand_counts,
    expand_hosts,
    find_place,
    job_port,
)

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_PROCID": "2",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    # Of the job, of which the step is a part.
    "SLURM_NTASKS": "8",
    "SLURM_JOB_NODELIST": "n[1-4]",
    "SLURM_TASKS_PER_NODE": "2(x4)",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-n1-5@1",
}
HYDRA = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "PMI_JOBID": "j"}
KUBERNETES = {
    "JOB_COMPLETION_INDEX": "1",
    "TOWERPACK_NNODES": "2",
    "TOWERPACK_SERVICE": "train",
    "HOSTNAME": "my-job-1",
}


def test_nothing_without_a_scheduler():
    assert find_place({}) is None
    assert find_place({"PMI_RANK": "0", "JOB_COMPLETION_INDEX": "0", "SLURM_JOB_ID": "7"}) is None


def test_a_slurm_step_comes_before_its_job():
    port = job_port("4711.2")
    place = Place("Slurm step 4711.2", 2, 3, ("n1", "n1", "n2"), port, "4711.2")
    assert find_place(SLURM) == place


def test_a_requeued_slurm_job_counts_its_attempts():
    place = find_place(SLURM | {"SLURM_RESTART_COUNT": "2"})
    assert place is not None
    assert place.attempt == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"SLURM_PROCID": ""}, "SLURM_PROCID: expected a whole number, received ''"),
        ({"SLURM_PROCID": "3"}, "expected a rank from 0 to 2, received 3"),
        ({"SLURM_STEP_NODELIST": "n1"}, "expected hosts and tasks per host for 3 tasks"),
        ({"SLURM_STEP_TASKS_PER_NODE": "1,1"}, "expected hosts and tasks per host for 3 tasks"),
        ({"SLURM_NODEID": "0"}, "expected task 2 on n2.*--distribution=block"),
        ({"SLURM_NODEID": "2"}, "expected task 2 on n2"),
        ({"SLURM_NODEID": "-1"}, "expected task 2 on n2"),
    ],
)
def test_what_slurm_cannot_mean(change, words):
    with pytest.raises(ValueError, match=words):
        find_place(SLURM | change)


@pytest.mark.parametrize("missing", ["SLURM_PROCID", "SLURM_NODEID"])
def test_a_missing_variable_is_named_and_the_way_out(missing):
    environ = {name: value for name, value in SLURM.items() if name != missing}
    with pytest.raises(ValueError, match=f"the variable {missing}, received none. Start `towerp"):
        find_place(environ)


def test_mpirun_comes_before_slurm():
    place = find_place(SLURM | OPEN_MPI)
    local = ("127.0.0.1", "127.0.0.1")
    job = "prterun-n1-5@1"
    assert place == Place("Open MPI", 1, 2, local, job_port(job), job)
    place = find_place(HYDRA)
    assert place == Place("PMI", 0, 2, local, job_port("j"), "j")


@pytest.mark.parametrize("change", [{"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, {"PMIX_NAMESPACE": ""}])
def test_mpirun_does_not_tell_the_hosts_of_several_machines(change):
    place = find_place(OPEN_MPI | change)
    assert place is not None
    assert place.hosts == ()


def test_a_pod_of_an_indexed_job():
    hosts = ("my-job-0.train", "my-job-1.train")
    assert find_place(KUBERNETES) == Place("Kubernetes job my-job", 1, 2, hosts, 12_000, "my-job")


@pytest.mark.parametrize(
    "change", [{"TOWERPACK_SERVICE": ""}, {"HOSTNAME": "other-2"}, {"HOSTNAME": "pod"}]
)
def test_a_pod_that_cannot_know_the_others(change):
    with pytest.raises(ValueError, match="expected TOWERPACK_SERVICE.*HOSTNAME=JOB-1; received"):
        find_place(KUBERNETES | change)


def test_pods_that_do_not_belong_together():
    environ = {name: value for name, value in KUBERNETES.items() if name != "TOWERPACK_NNODES"}
    assert find_place(environ) is None


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("a", ["a"]),
        ("a,b-1.c", ["a", "b-1.c"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[1,3-4]x,m", ["n1x", "n3x", "n4x", "m"]),
        ("a[1-2]b[01,3]", ["a1b01", "a1b3", "a2b01", "a2b3"]),
    ],
)
def test_lists_of_hosts(text, hosts):
    assert expand_hosts(text) == hosts


def test_lists_of_counts():
    assert expand_counts("") == []
    assert expand_counts("2(x3),1,10(x2)") == [2, 2, 2, 1, 10, 10]


def test_ports_of_jobs_do_not_meet_and_are_not_ephemeral():
    ports = {job_port(f"{job}.0") for job in range(1000)}
    assert all((port - FIRST_PORT) % PORTS_PER_JOB == 0 for port in ports)
    assert min(ports) >= FIRST_PORT
    assert max(ports) + PORTS_PER_JOB <= FIRST_PORT + PORTS_PER_JOB * JOBS <= 32_768
    assert len(ports) > 400


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_ranks_of_mpich_4_are_known_by_the_process_that_started_them(tmp_path):
    """A shell named like MPICH's program starts two ranks, one through another shell."""
    proxy = tmp_path / "hydra_pmi_proxy"
    proxy.symlink_to("/bin/sh")
    code = (
        "import os; from towerpack.core.schedulers import find_place; print(find_place(os.environ))"
    )
    variables = {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "PYTHON": sys.executable, "CODE": code}
    script = """
        PMI_RANK=0 "$PYTHON" -c "$CODE"; PMI_RANK=1 sh -c '"$PYTHON" -c "$CODE"; true'; echo $$
    """
    environ = {name: x for name, x in os.environ.items() if name not in DECISIVE}
    run = subprocess.run(
        [proxy, "-c", script], env=environ | variables, capture_output=True, text=True, check=True
    )
    *places, pid = run.stdout.splitlines()
    job = f"hydra-{pid}"
    local = ("127.0.0.1",) * 2
    assert places == [str(Place("PMI", rank, 2, local, job_port(job), job)) for rank in (0, 1)]
    assert find_place({"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}).hosts == ()
