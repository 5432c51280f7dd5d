"""What Slurm, MPI and Kubernetes tell a process that they started, read from its environment.

The process is one of several that were started alike: the ranks of a training run, or one
`towerpack launch` per host. Nothing here opens a connection.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Ports are derived from the job, so that all its processes know them and jobs do not meet. The
# range ends below the ports that Linux gives to outgoing connections (32768).
FIRST_PORT, PORTS_PER_JOB, JOBS = 12_000, 32, 640
KUBERNETES_PORT = 12_000  # each pod has its own address
BY_HAND = (
    "Start `towerpack launch` once per host, with --nnodes, --node-rank and --rendezvous HOST:PORT"
)

# Each scheduler is recognized by one of these.
DECISIVE = ("OMPI_COMM_WORLD_RANK", "SLURM_STEP_NUM_TASKS", "PMI_RANK", "JOB_COMPLETION_INDEX")

Environment = Mapping[str, str]


@dataclass(frozen=True)
class Place:
    """Number `rank` of the `size` processes that a scheduler started alike.

    `hosts` names the host of each, and is empty if the scheduler does not tell. `port` is the first
    of the job's ports on every host. `job` is the same text in all processes of one start.
    """

    source: str
    rank: int
    size: int
    hosts: tuple[str, ...]
    port: int
    job: str
    attempt: int = 0


def find_place(environ: Environment) -> Place | None:
    """The place that the innermost scheduler gave to this process; None without one.

    mpirun comes before Slurm, because mpirun inside a Slurm job starts its own processes. A step of
    a Slurm job comes before the job, whose other hosts may run something else.
    """
    for find in (_open_mpi, _slurm, _hydra, _kubernetes):
        place = find(environ)
        if place is not None:
            if not 0 <= place.rank < place.size:
                raise ValueError(
                    f"{place.source}: expected a rank from 0 to {place.size - 1}, received "
                    f"{place.rank}; the environment was changed, or belongs to another process"
                )
            return place
    return None


def integer(environ: Environment, name: str) -> int:
    """The value of a variable that must be a whole number."""
    try:
        return int(environ[name])
    except KeyError:
        raise ValueError(f"expected the variable {name}, received none. {BY_HAND}") from None
    except ValueError:
        raise ValueError(f"{name}: expected a whole number, received {environ[name]!r}") from None


def _slurm(environ: Environment) -> Place | None:
    if "SLURM_STEP_NUM_TASKS" not in environ:  # a batch script or a shell: not started by srun
        return None
    job = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
    size, rank = integer(environ, "SLURM_STEP_NUM_TASKS"), integer(environ, "SLURM_PROCID")
    nodes = expand_hosts(environ.get("SLURM_STEP_NODELIST", ""))
    counts = expand_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if len(nodes) != len(counts) or sum(counts) != size:
        raise ValueError(
            f"Slurm: expected hosts and tasks per host for {size} tasks, received "
            f"SLURM_STEP_NODELIST={environ.get('SLURM_STEP_NODELIST')!r} and "
            f"SLURM_STEP_TASKS_PER_NODE={environ.get('SLURM_STEP_TASKS_PER_NODE')!r}. {BY_HAND}"
        )
    hosts = [node for node, count in zip(nodes, counts, strict=True) for _ in range(count)]
    node = integer(environ, "SLURM_NODEID")
    if 0 <= rank < size and nodes[node : node + 1] != [hosts[rank]]:
        raise ValueError(
            f"Slurm: expected task {rank} on {hosts[rank]}, since hosts are filled in order, but "
            f"it is on node {node} of {', '.join(nodes)}; use srun --distribution=block"
        )
    restarts = int(environ.get("SLURM_RESTART_COUNT") or 0)
    return Place(f"Slurm step {job}", rank, size, tuple(hosts), job_port(job), job, restarts)


def _open_mpi(environ: Environment) -> Place | None:
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return None
    job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid", "")
    local = environ.get("OMPI_COMM_WORLD_LOCAL_SIZE")
    return _mpi("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", local, job, environ)


def _hydra(environ: Environment) -> Place | None:
    """The mpirun of MPICH and Intel MPI."""
    if "PMI_RANK" not in environ or "PMI_SIZE" not in environ:
        return None
    local = environ.get("MPI_LOCALNRANKS")
    job = environ.get("PMI_JOBID") or _proxy_of_hydra()
    return _mpi("PMI", "PMI_RANK", "PMI_SIZE", local, job, environ)


def _proxy_of_hydra() -> str:
    """Names the process by which mpirun started the ranks of this host, since MPICH 4 names no job.

    Empty if there is none.
    """
    pid = os.getppid()
    with contextlib.suppress(OSError):  # a process has ended, or is not on Linux
        while pid > 1:
            name, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")
            if name.endswith("(hydra_pmi_proxy"):
                return f"hydra-{pid}"
            pid = int(fields.split()[1])
    return ""


def _mpi(
    source: str, rank: str, size: str, local: str | None, job: str, environ: Environment
) -> Place:
    """The hosts are known if all processes are on this one."""
    count = integer(environ, size)
    known = job and local == str(count)
    hosts = ("127.0.0.1",) * count if known else ()
    return Place(source, integer(environ, rank), count, hosts, job_port(job), job)


def _kubernetes(environ: Environment) -> Place | None:
    """A pod of an indexed Job; without TOWERPACK_NNODES its pods do not belong together."""
    if "JOB_COMPLETION_INDEX" not in environ or "TOWERPACK_NNODES" not in environ:
        return None
    rank, size = integer(environ, "JOB_COMPLETION_INDEX"), integer(environ, "TOWERPACK_NNODES")
    job, _, index = environ.get("HOSTNAME", "").rpartition("-")
    service = environ.get("TOWERPACK_SERVICE")
    if size > 1 and (not service or not job or index != str(rank)):
        raise ValueError(
            "Kubernetes: expected TOWERPACK_SERVICE, the name of the job's headless service "
            f"(`subdomain` of the pods), and HOSTNAME=JOB-{rank}; received "
            f"TOWERPACK_SERVICE={service!r} and HOSTNAME={environ.get('HOSTNAME')!r}. {BY_HAND}"
        )
    hosts = tuple(f"{job}-{i}.{service}" for i in range(size))
    return Place(f"Kubernetes job {job}", rank, size, hosts, KUBERNETES_PORT, job)


def job_port(job: str) -> int:
    """The first of the ports of a job.

    >>> job_port("4711.0") == job_port("4711.0") != job_port("4712.0")
    True
    """
    return FIRST_PORT + zlib.crc32(job.encode()) % JOBS * PORTS_PER_JOB


def expand_hosts(text: str) -> list[str]:
    """The hosts of a Slurm node list.

    >>> expand_hosts("n[01-03,7]-ib,login")
    ['n01-ib', 'n02-ib', 'n03-ib', 'n7-ib', 'login']
    >>> expand_hosts("rack[1-2]n[1-2]")
    ['rack1n1', 'rack1n2', 'rack2n1', 'rack2n2']
    """
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text):
        names = [""]
        for fixed, numbers in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", part):
            choices = [fixed] if fixed else _expand_numbers(numbers)
            names = [name + choice for name in names for choice in choices]
        hosts += names
    return hosts


def _expand_numbers(text: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        width = len(first)
        found += [f"{number:0{width}}" for number in range(int(first), int(last or first) + 1)]
    return found


def expand_counts(text: str) -> list[int]:
    """The tasks of each host, from Slurm's short form.

    >>> expand_counts("2(x3),1")
    [2, 2, 2, 1]
    """
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, times in found for _ in range(int(times or 1))]
