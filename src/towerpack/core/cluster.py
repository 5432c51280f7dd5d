"""This process as one rank of many: where the others are, and what its supervisor learns of it.

`towerpack launch` starts ranks and passes these variables to them; other programs may set the
first one or `TF_CONFIG`, or start the ranks by Slurm, MPI or Kubernetes.

| variable | content |
| --- | --- |
| TOWERPACK_CLUSTER | JSON: addresses, rank, token, attempt, servers |
| TOWERPACK_PROGRESS | the file of this rank that `Progress.beat` writes |
| TOWERPACK_FAILURE | the file of this rank that `Progress.report_failure` writes |
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import logging
import os
import signal
import socket
import struct
import time
import traceback
import zlib
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from towerpack.core.processes import NO_DESCRIPTOR
from towerpack.core.schedulers import BY_HAND, PORTS_PER_JOB, find_place

RESTART_CODE = 75  # EX_TEMPFAIL: all ranks exit with it to be started again
FATAL_CODE = 2  # wrong use: a restart cannot help
STACKS_SIGNAL = signal.SIGUSR2  # a supervised rank prints the stacks of its threads
BEAT = struct.Struct("=qd")  # the step, or FINISHED; the monotonic time
FINISHED = -1
CLUSTER, PROGRESS, FAILURE = "TOWERPACK_CLUSTER", "TOWERPACK_PROGRESS", "TOWERPACK_FAILURE"


class WrongUse(ValueError):
    """An error of the program, which a restart of the ranks cannot cure."""


class RanksDiffer(WrongUse):
    """The ranks do not run the same program, so their collectives would add up different things."""


@dataclass(frozen=True)
class Cluster:
    """The ranks of a run, each at "host:port", and which of them this process is.

    `token` names the job and the attempt, and is equal in all ranks; it is empty where the
    environment has no such name. `attempt` counts restarts. `source` says where this was found.
    `local_rank` counts the ranks of this host, of which there are `local_ranks`. If there are
    `servers`, parameter servers, they are the ranks after the chief, and workers follow.

    >>> cluster = Cluster(("a:1", "b:1", "b:2"), rank=2, source="an example")
    >>> cluster.size, cluster.is_chief, cluster.local_rank, cluster.local_ranks
    (3, False, 1, 2)
    """

    addresses: tuple[str, ...]
    rank: int
    source: str
    token: str = ""
    attempt: int = 0
    servers: int = 0

    def __post_init__(self) -> None:
        for address in self.addresses:
            host, _, port = str(address).rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65536:
                raise ValueError(f"{self.source}: expected HOST:PORT, received {address!r}")
        twice = sorted({a for a in self.addresses if self.addresses.count(a) > 1})
        if twice:
            raise ValueError(
                f"{self.source}: expected another address for each rank, received "
                f"{', '.join(twice)} more than once; give each rank its own port"
            )
        if not 0 <= self.rank < self.size:
            raise ValueError(
                f"{self.source}: expected a rank from 0 to {self.size - 1}, since there are "
                f"{self.size} addresses, received {self.rank}"
            )
        if self.servers < 0 or (self.servers and self.size < self.servers + 2):
            raise ValueError(
                f"{self.source}: expected at least {self.servers + 2} ranks, a chief, "
                f"{self.servers} parameter servers and a worker, received {self.size}"
            )

    @property
    def job(self) -> str:
        """The name of the job, which its restarts have in common."""
        return self.token.rpartition("-")[0]

    @property
    def size(self) -> int:
        return len(self.addresses)

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    @property
    def local_rank(self) -> int:
        return self._local().index(self.rank)

    @property
    def local_ranks(self) -> int:
        return len(self._local())

    def _local(self) -> list[int]:
        hosts = [address.rpartition(":")[0] for address in self.addresses]
        return [rank for rank, host in enumerate(hosts) if host == hosts[self.rank]]

    @property
    def is_server(self) -> bool:
        """Whether this rank serves the chief, and does not run the script."""
        return self.rank > 0 and self.servers > 0

    @property
    def is_replaceable(self) -> bool:
        """Whether the others continue without this rank until it comes back."""
        return 0 < self.servers < self.rank

    @property
    def jobs(self) -> dict[str, list[str]]:
        """The addresses by the names that `tf.distribute` has for the parts that ranks play."""
        addresses, workers = list(self.addresses), 1 + self.servers
        if not self.servers:
            return {"worker": addresses}
        return {
            "chief": addresses[:1],
            "ps": addresses[1:workers],
            "worker": addresses[workers:],
        }

    @property
    def task(self) -> tuple[str, int]:
        """The job of this rank, and its number in it."""
        own = self.addresses[self.rank]
        return next((job, all_.index(own)) for job, all_ in self.jobs.items() if own in all_)

    def variables(self) -> dict[str, str]:
        """The environment by which `find_cluster`, or TensorFlow alone, finds this cluster."""
        fields = ("addresses", "rank", "token", "attempt", "servers")
        job, index = self.task
        task = {"type": job, "index": index}
        return {
            CLUSTER: json.dumps({name: getattr(self, name) for name in fields}),
            "TF_CONFIG": json.dumps({"cluster": self.jobs, "task": task}),
        }


def find_cluster(environ: Mapping[str, str] = os.environ) -> Cluster | None:
    """The cluster that this process was started in, or None if there is none.

    The first of these decides: TOWERPACK_CLUSTER, TF_CONFIG, mpirun (Open MPI), a Slurm step,
    mpirun (MPICH), an indexed Job of Kubernetes. What cannot be right raises ValueError: a rank
    outside of the cluster, an address twice, a role that does not train, processes whose addresses
    cannot be known.

    >>> found = find_cluster({"TOWERPACK_CLUSTER": '{"addresses": ["a:1", "b:1"], "rank": 1}'})
    >>> found.addresses, found.rank, found.source
    (('a:1', 'b:1'), 1, 'TOWERPACK_CLUSTER')
    """
    return _from_launcher(environ) or _from_tf_config(environ) or _from_scheduler(environ)


@functools.cache
def this_cluster() -> Cluster | None:
    """The cluster that this process was started in; processes that it starts are not in it."""
    cluster = find_cluster()
    for name in (CLUSTER, "TF_CONFIG"):
        os.environ.pop(name, None)
    return cluster


def is_chief() -> bool:
    """Whether this process writes the files of its run: it trains alone, or is rank 0."""
    cluster = this_cluster()
    return cluster is None or cluster.is_chief


def _from_launcher(environ: Mapping[str, str]) -> Cluster | None:
    if not environ.get(CLUSTER):
        return None
    fields = _json_object(environ, CLUSTER)
    types = {"addresses": list, "rank": int, "token": str, "attempt": int, "servers": int}
    wrong = [name for name, value in fields.items() if type(value) is not types.get(name)]
    if wrong or not {"addresses", "rank"} <= fields.keys():
        raise ValueError(
            f"{CLUSTER}: expected 'addresses' (a list of HOST:PORT), 'rank', and perhaps 'token', "
            f"'attempt' and 'servers', received {environ[CLUSTER]}"
        )
    return Cluster(**{**fields, "addresses": tuple(fields["addresses"])}, source=CLUSTER)


def _from_tf_config(environ: Mapping[str, str]) -> Cluster | None:
    """The addresses of TF_CONFIG: the chief first, if there is one, then the workers."""
    fields = _json_object(environ, "TF_CONFIG") if environ.get("TF_CONFIG") else {}
    roles, task = fields.get("cluster") or {}, fields.get("task") or {}
    if not roles:
        return None
    kind: Any = task.get("type")
    index: Any = task.get("index")
    if others := roles.keys() - {"chief", "worker"}:
        raise ValueError(
            f"TF_CONFIG: expected the roles chief and worker, received {', '.join(sorted(others))};"
            " remove them, since ranks do all the work, and evaluate in a callback of the chief"
        )
    if kind not in roles or type(index) is not int or not 0 <= index < len(roles[kind]):
        raise ValueError(
            f"TF_CONFIG: expected a task of {dict(roles)}, received the task {task}; set 'type' "
            "and 'index' to this process's own"
        )
    chiefs = roles.get("chief", [])
    addresses = tuple(chiefs) + tuple(roles.get("worker", []))
    rank = index if kind == "chief" else len(chiefs) + index
    return Cluster(addresses, rank, "TF_CONFIG", f"{zlib.crc32(repr(addresses).encode()):08x}")


def _from_scheduler(environ: Mapping[str, str]) -> Cluster | None:
    place = find_place(environ)
    if place is None:
        return None
    if place.size > 1 and not place.hosts:
        raise ValueError(
            f"{place.source}: expected to learn the hosts of all {place.size} ranks, but its "
            f"environment does not contain them. {BY_HAND}"
        )
    hosts = place.hosts or ("127.0.0.1",)
    counts = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    if max(counts) >= PORTS_PER_JOB:
        raise ValueError(
            f"{place.source}: expected at most {PORTS_PER_JOB} ranks per host, received "
            f"{max(counts) + 1}. {BY_HAND}"
        )
    addresses = [f"{host}:{place.port + n}" for host, n in zip(hosts, counts, strict=True)]
    token = f"{place.job}-{place.attempt}"
    return Cluster(tuple(addresses), place.rank, place.source, token, place.attempt)


def _json_object(environ: Mapping[str, str], name: str) -> dict[str, Any]:
    try:
        found = json.loads(environ[name])
    except ValueError as error:
        raise ValueError(f"{name}: expected JSON, received {environ[name]!r}: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{name}: expected a JSON object, received {environ[name]!r}")
    return found


class Progress:
    """What a rank reports to the supervisor that started it; nothing if there is none.

    The supervisor restarts all ranks if one of them does not call `beat` for a long time. It sends
    STACKS_SIGNAL before, to which a supervised rank answers with the stacks of its threads. The
    variables are removed, because processes that this one starts must not report in its place.

    >>> Progress({}).beat(step=1)
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ):
        self._failure = environ.pop(FAILURE, None)
        self._file = NO_DESCRIPTOR
        self._step: int | None = None
        beats = environ.pop(PROGRESS, None)
        if beats:
            self._file = os.open(beats, os.O_WRONLY | os.O_CREAT, 0o600)
            faulthandler.register(STACKS_SIGNAL)

    @property
    def is_supervised(self) -> bool:
        """Whether a supervisor has started this process."""
        return self._file != NO_DESCRIPTOR

    def beat(self, step: int) -> None:
        """Notes that the rank has reached this step; takes about a microsecond."""
        self._step = step
        self._write(step)

    def _write(self, step: int) -> None:
        if self.is_supervised:
            os.pwrite(self._file, BEAT.pack(step, time.monotonic()), 0)

    def keep_alive(self) -> None:
        """Notes progress in work that takes long and is no step; nothing before the first `beat`.

        >>> Progress({}).keep_alive()
        """
        if self._step is not None:
            self._write(self._step)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """While open, the rank waits for the others, so that no beat is expected of it.

        One of the others is busy, and its own beats show whether it makes progress.
        """
        if self._step is not None:
            self._write(FINISHED)
        try:
            yield
        finally:
            self.keep_alive()

    def finish(self) -> None:
        """Notes that no beat will follow, because the training is over. The process may continue.

        Another `beat` takes that back.
        """
        self.beat(FINISHED)

    def report_failure(self, error: BaseException, secondary: bool) -> None:
        """Hands the error to the supervisor, which prints that of the first rank that failed.

        `secondary` means that the error only follows from the loss of another rank.
        """
        if self._failure is None:
            return
        report = {
            "time": time.time(),
            "host": socket.gethostname(),
            "secondary": secondary,
            "traceback": "".join(traceback.format_exception(error)),
        }
        part = Path(f"{self._failure}.part")
        try:
            part.write_text(json.dumps(report))
            part.replace(self._failure)  # the supervisor never reads half of it
        except OSError as unwritten:  # the error itself must not be lost over this
            # The module `logger` imports this one, so it cannot be used here.
            logging.getLogger("towerpack").error(
                "the supervisor cannot be informed of this error: %s", unwritten
            )


progress = Progress()
"""What this process reports to its supervisor, if it has one."""


def read_beat(path: Path) -> tuple[int, float] | None:
    """The last step and its monotonic time, from a rank of this host; None before the first."""
    step, moment = BEAT.unpack(path.read_bytes())
    return (step, moment) if moment else None
