"""Joining a cluster of processes, which TensorFlow allows only before it runs its first operation.

In a process that `towerpack launch` started, `towerpack._tensorflow` joins as soon as TensorFlow is
loaded, so that a script may use TensorFlow before it makes its trainer.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from types import TracebackType
from typing import Any

from towerpack._servers import play_part
from towerpack._tensorflow import tf
from towerpack.core.cluster import (
    FATAL_CODE,
    RESTART_CODE,
    Cluster,
    WrongUse,
    progress,
    this_cluster,
)

LOGICAL_CPUS = 4  # stand in for the GPUs of a rank on a machine that has none


@functools.cache
def joined(cluster: Cluster) -> Any:
    """The strategy of this process in `cluster`; it waits until all ranks have joined.

    The GPUs of a host are divided evenly among its ranks. Each rank is one replica: on its first
    GPU, through NCCL, or on the CPU, through gRPC. Its towers are replicated inside of it.
    """
    gpus = _own_gpus(cluster)
    experimental = tf.distribute.experimental
    kinds = experimental.CommunicationImplementation
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
        task_type="worker",
        task_id=cluster.rank,
        rpc_layer="grpc",
        num_accelerators={"GPU": min(gpus, 1)},
    )
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(
            resolver,
            experimental.CommunicationOptions(implementation=kinds.NCCL if gpus else kinds.RING),
        )
    except RuntimeError as error:
        error.add_note(
            "A process joins its cluster before TensorFlow runs its first operation: start the "
            "script with `towerpack launch` and import towerpack before you use TensorFlow, or "
            "make the trainer first."
        )
        raise
    sys.excepthook = end_at_once
    return strategy


def join_if_launched() -> None:
    """Joins the cluster of the launcher that started this process.

    A rank that serves the chief of a cluster with parameter servers does so, and does not return.
    """
    cluster = this_cluster()
    if cluster is not None and cluster.servers:
        play_part(cluster)
    elif cluster is not None and cluster.size > 1:
        joined(cluster)


def end_at_once(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Ends the process after an error that the script did not catch, so that its peers notice.

    The interpreter would take many seconds to end, while the other ranks wait for this one.
    """
    lost = isinstance(error, LOST_PEER)
    if not isinstance(error, KeyboardInterrupt):  # asked for, and the exit code says so
        progress.report_failure(error, secondary=lost)
    sys.__excepthook__(kind, error, traceback)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # it is closed
            stream.flush()
    if isinstance(error, KeyboardInterrupt):
        os._exit(130)
    os._exit(RESTART_CODE if lost else FATAL_CODE if isinstance(error, WrongUse) else 1)


# What a collective raises after another rank has ended, or cannot be reached.
LOST_PEER = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
)


def _own_gpus(cluster: Cluster) -> int:
    """Hides the GPUs of the host's other ranks; returns how many are left to this one."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        (cpu,) = tf.config.list_physical_devices("CPU")
        if not tf.config.get_logical_device_configuration(cpu):
            parts = [tf.config.LogicalDeviceConfiguration() for _ in range(LOGICAL_CPUS)]
            tf.config.set_logical_device_configuration(cpu, parts)
        return 0
    each = len(gpus) // cluster.local_ranks
    if not each:
        raise ValueError(
            f"expected a GPU for each of the {cluster.local_ranks} ranks of this host, received "
            f"{len(gpus)}; start fewer ranks"
        )
    own = gpus[cluster.local_rank * each : (cluster.local_rank + 1) * each]
    tf.config.set_visible_devices(own, "GPU")
    return each
