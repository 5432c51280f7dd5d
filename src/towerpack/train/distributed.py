"""Training one cost on many machines: every rank has its own process, data and towers."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Sequence
from typing import Any

from towerpack.core import logger
from towerpack.core.cluster import WrongUse, this_cluster
from towerpack.train.devices import MirroredTowers, OneTower, tower_devices
from towerpack.train.fingerprint import program_facts
from towerpack.train.multi_gpu import reduction_for
from towerpack.train.ranks import OneRank, Ranks
from towerpack.train.tower_trainer import SingleCostTrainer

LONGEST_LINE = 500  # of addresses, in the log


class DistributedTrainerReplicated(SingleCostTrainer):
    """Trains in step with the other ranks of a cluster; each has `gpus` towers of its own.

    `towerpack launch` starts the ranks, or a scheduler does; without one, the same script trains
    here alone. Every tower of every rank uses a batch of its own in each step, and all apply the
    same gradients, averaged over all datapoints: R ranks of T towers train like one process of
    R * T towers, on the same stream of batches. Only stateful random operations, such as
    `tf.random.normal`, draw other numbers than there. Equal seeds and equal R and T give equal
    runs. A checkpoint is that of one process, and a run resumes on any number of ranks.

    Callbacks run on the chief (rank 0), except those with `chief_only = False`. What they change in
    scalar variables that are not trained, and what they stop, reaches all ranks before the next
    call; other variables at the next epoch. What differs from the chief's variables is overruled
    then. State that layers update, such as moving averages, is the chief's on all ranks after the
    steps of each epoch.

    The ranks must run the same program on the same data: what differs is reported before the first
    step. A rank that fails ends its process, and the launcher restarts all of them from the last
    checkpoint. XLA cannot compile steps of several ranks, so `jit=True` is refused.

    Args:
        gpus: the towers of each rank, as for `SyncMultiGPUTrainer`.
        average: whether gradients are averaged over all towers, or summed.
        compression: 'bfloat16' halves the traffic between ranks and rounds the gradients.
    """

    def __init__(
        self,
        gpus: int | Sequence[int] = 1,
        *,
        average: bool = True,
        compression: str | None = None,
        **options: Any,
    ) -> None:
        devices = tower_devices(gpus)
        towers = OneTower(devices)
        if len(devices) > 1:
            # TensorFlow's choice would number its groups of GPUs like those of the ranks.
            reduction = reduction_for("nccl" if "gpu" in devices[0] else None, devices)
            towers = MirroredTowers(devices, reduction, average, own_variables=True)
        ranks = ranks_of_run(average, compression)
        if ranks.size == 1:
            logger.info("training on one machine: no cluster of several ranks was found")
        super().__init__(towers, ranks=ranks, **options)


class HorovodTrainer(DistributedTrainerReplicated):
    """`DistributedTrainerReplicated` with one tower, for scripts that used Horovod."""

    def __init__(
        self, average: bool = True, compression: str | None = None, **options: Any
    ) -> None:
        logger.info("HorovodTrainer is DistributedTrainerReplicated(1): Horovod is not used")
        super().__init__(1, average=average, compression=compression, **options)


def ranks_of_run(average: bool = True, compression: str | None = None) -> OneRank:
    """The ranks of the cluster that this process belongs to; waits until all have joined it.

    It is for trainers of your own: `TowerTrainer.__init__(..., ranks=ranks_of_run())` adds up the
    gradients of all ranks. All of them must call it. Without a cluster there is one rank.
    """
    if compression not in (None, "bfloat16"):
        raise ValueError(f"expected compression=None or 'bfloat16', received {compression!r}")
    cluster = this_cluster()
    if cluster is None or cluster.size == 1:
        return OneRank()
    if cluster.servers:
        raise WrongUse(
            f"expected a cluster without parameter servers, received {cluster.servers}; use "
            "DistributedTrainerParameterServer, or start the ranks without --servers"
        )
    addresses = ", ".join(cluster.addresses)
    if len(addresses) > LONGEST_LINE:
        addresses = f"{addresses[:LONGEST_LINE]} ..."
    where = f"{cluster.source}, attempt {cluster.attempt}"
    logger.info("rank %d of %d, found in %s: %s", cluster.rank, cluster.size, where, addresses)
    logger.info(
        "TensorFlow opens the ports of a cluster on all networks of this machine, unprotected: let "
        "no stranger reach them (docs/distributed.md, Security)"
    )
    ranks = Ranks(cluster, average, compression is not None)
    ranks.check_same({**program_facts(), "average": average, "compression": compression})
    arguments = ranks.gather(json.dumps(sys.argv[1:]).encode(), "the arguments of the script")
    if len(set(arguments)) > 1:
        _warn_of(tuple(arguments))
    return ranks


@functools.cache
def _warn_of(arguments: tuple[bytes, ...]) -> None:
    of_ranks = "; ".join(f"{text.decode()} on rank {rank}" for rank, text in enumerate(arguments))
    logger.warning("the ranks were started with different arguments: %s", of_ranks)
