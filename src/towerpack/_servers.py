"""The parts that ranks play in a cluster with parameter servers, as `tf.distribute` defines them.

Rank 0, the chief, runs the script. All other ranks become TensorFlow servers as soon as TensorFlow
is loaded: parameter servers keep the variables, workers run the steps that the chief sends them. A
server ends with its chief.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import sys
import time
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.core import logger
from towerpack.core.cluster import RESTART_CODE, Cluster

LOOPBACK = "127.0.0.1"
CHIEF_SECONDS = 900.0  # until the chief listens: the other hosts may start later
CONNECT_SECONDS = 10.0
REFUSALS = 3  # connections to the chief in a row that fail, after which it is taken for dead
LOOK_SECONDS = 1.0  # between two connections to the chief
THREADS = 8  # of a server within the chief's process: with fewer, it would wait for the chief
STOPS = (signal.SIGINT, signal.SIGTERM)  # reach the chief as well, which decides when to end


def play_part(cluster: Cluster) -> None:
    """Serves the chief, and does not return. Returns at once in the chief itself."""
    if cluster.is_chief:
        tf.config.set_visible_devices([], "GPU")  # they belong to the workers
        return
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    job, index = cluster.task
    logger.info("rank %d of %d serves as %s %d", cluster.rank, cluster.size, job, index)
    _start_server(cluster.jobs, job, index, _own_gpus(cluster))
    code = _wait_for_end(cluster.addresses[0])
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # nothing else would end the threads of the server


@functools.cache
def coordinator(cluster: Cluster | None) -> Any:
    """The `ClusterCoordinator` of this process, the chief; waits until all servers are there.

    Without a cluster, a parameter server and a worker are started within this process.
    """
    jobs = _local_jobs() if cluster is None else cluster.jobs
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    distribute = tf.distribute
    strategy = distribute.ParameterServerStrategy(resolver)
    return distribute.coordinator.ClusterCoordinator(strategy)


def _local_jobs() -> dict[str, list[str]]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((LOOPBACK, 0))) for _ in range(3)]
        addresses = [f"{LOOPBACK}:{each.getsockname()[1]}" for each in sockets]
    jobs = {job: [at] for job, at in zip(("chief", "ps", "worker"), addresses, strict=True)}
    for job in ("ps", "worker"):
        _start_server(jobs, job, 0, "", THREADS)
    return jobs


def _start_server(
    jobs: dict[str, list[str]], job: str, index: int, gpus: str, threads: int = 0
) -> None:
    """Starts a server in threads of this process, which end with the process."""
    options = v1.ConfigProto(inter_op_parallelism_threads=threads)
    options.gpu_options.visible_device_list = gpus
    if not gpus:
        options.device_count["GPU"] = 0
    _servers.append(
        tf.distribute.Server(
            tf.train.ClusterSpec(jobs), job, index, protocol="grpc", config=options
        )
    )


_servers: list[Any] = []  # a server that is freed would not serve


def _own_gpus(cluster: Cluster) -> str:
    """The GPUs of this worker: those of a host are divided evenly among its workers."""
    job, _ = cluster.task
    count = len(tf.config.list_physical_devices("GPU"))
    if job != "worker" or not count:
        return ""
    hosts = [address.rpartition(":")[0] for address in cluster.addresses]
    workers = range(1 + cluster.servers, cluster.size)
    here = [rank for rank in workers if hosts[rank] == hosts[cluster.rank]]
    each = count // len(here)
    if not each:
        raise ValueError(
            f"expected a GPU for each of the {len(here)} workers of this host, received {count}; "
            "start fewer ranks"
        )
    first = here.index(cluster.rank) * each
    return ",".join(str(number) for number in range(first, first + each))


def _wait_for_end(chief: str) -> int:
    """Waits until the chief has ended; returns the exit code of this process."""
    host, _, port = chief.rpartition(":")
    address = host.removeprefix("[").removesuffix("]"), int(port)
    deadline, refusals = time.monotonic() + CHIEF_SECONDS, 0
    while not _connected(address):
        if time.monotonic() > deadline:
            logger.error("the chief does not listen at %s after %g s", chief, CHIEF_SECONDS)
            return RESTART_CODE
        time.sleep(LOOK_SECONDS)
    while refusals < REFUSALS:
        refusals = 0 if _connected(address) else refusals + 1
        time.sleep(LOOK_SECONDS)
    return 0


def _connected(address: tuple[str, int]) -> bool:
    """Whether the chief listens: it does as long as it lives. Returns sooner if it ends."""
    try:
        with socket.create_connection(address, CONNECT_SECONDS) as connection:
            with contextlib.suppress(OSError):  # it says little to those that say nothing
                while connection.recv(1024):
                    pass
            return True
    except OSError:
        return False
