"""Joining a cluster of processes, which TensorFlow allows only before it runs its first operation.

In a process that `towerpack launch` started, `towerpack._tensorflow` joins as soon as TensorFlow is
loaded, so that a script may use TensorFlow before it makes its trainer.
"""

from __future__ import annotations

import os
from typing import Any

from towerpack._tensorflow import tf
from towerpack.core.cluster import Cluster

LOGICAL_CPUS = 4  # stand in for the GPUs of a rank on a machine that has none
_strategies: dict[Cluster, Any] = {}


def joined(cluster: Cluster) -> Any:
    """The strategy of this process in `cluster`; it waits until all ranks have joined.

    The GPUs of a host are divided evenly among its ranks. Each rank is one replica: on its first
    GPU, through NCCL, or on the CPU, through gRPC. Its towers are replicated inside of it.
    """
    if cluster not in _strategies:
        if _strategies:
            raise RuntimeError("this process is in a cluster already, and cannot join another one")
        gpus = _own_gpus(cluster)
        os.environ.pop("TF_CONFIG", None)  # TensorFlow would also read what Keras starts by it
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
            _strategies[cluster] = tf.distribute.MultiWorkerMirroredStrategy(
                resolver,
                experimental.CommunicationOptions(
                    implementation=kinds.NCCL if gpus else kinds.RING
                ),
            )
        except RuntimeError as error:
            error.add_note(
                "A process joins its cluster before TensorFlow runs its first operation: start the "
                "script with `towerpack launch` and import towerpack before you use TensorFlow, or "
                "make the trainer first."
            )
            raise
    return _strategies[cluster]


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
