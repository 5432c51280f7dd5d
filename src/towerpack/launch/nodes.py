"""Which node this is: from the options of `towerpack launch`, or from the scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from towerpack.core import logger
from towerpack.core.schedulers import find_place
from towerpack.launch.rendezvous import split_address


@dataclass(frozen=True)
class Node:
    """Node `rank` of `count`, which meet at `rendezvous` and belong to `job`."""

    rank: int = 0
    count: int = 1
    rendezvous: str = ""
    job: str = ""


def find_node(
    count: int | None,
    rank: int | None,
    rendezvous: str | None,
    job: str,
    environ: Mapping[str, str],
) -> Node:
    """The options, completed by what the scheduler that started this process tells; logged.

    An option that contradicts the scheduler raises ValueError. Without options and scheduler there
    is one node.
    """
    place = find_place(environ)
    if place is None or place.size == 1:  # a shell that a scheduler started has a place, too
        if count is None and rank is None and rendezvous is None:
            _warn_of_unused_nodes(environ)
            return Node()
        if count is None:
            raise ValueError(
                "expected --nnodes, the number of nodes, with --node-rank and --rendezvous, "
                "received none"
            )
        place, place_rank, place_count, place_rendezvous = None, rank, count, rendezvous
    else:
        for option, given, found in (
            ("--nnodes", count, place.size),
            ("--node-rank", rank, place.rank),
        ):
            if given not in (None, found):
                raise ValueError(
                    f"{option}: expected {found}, which {place.source} gives, received {given}; "
                    f"leave {option} out"
                )
        place_rank, place_count, job = place.rank, place.size, place.job or job
        known = f"{place.hosts[0]}:{place.port}" if place.hosts else None
        place_rendezvous = rendezvous or known
    if place_count == 1 and not place_rank:
        return Node()
    if place_rank is None or place_rendezvous is None or not 0 <= place_rank < place_count:
        raise ValueError(
            f"expected --node-rank from 0 to {place_count - 1} and --rendezvous HOST:PORT, an "
            f"address of node 0, since there are {place_count} nodes; received --node-rank "
            f"{place_rank} and --rendezvous {place_rendezvous}"
        )
    split_address(place_rendezvous)
    source = place.source if place else "the options"
    where = place_rank, place_count, source, place_rendezvous
    logger.info("node %d of %d, found in %s; the rendezvous is at %s", *where)
    return Node(place_rank, place_count, place_rendezvous, job)


def _warn_of_unused_nodes(environ: Mapping[str, str]) -> None:
    if int(environ.get("SLURM_JOB_NUM_NODES") or 1) > 1:
        logger.warning(
            "this Slurm job has %s nodes, but this command was started on one: start it by `srun "
            "--ntasks-per-node=1 towerpack launch ...`",
            environ["SLURM_JOB_NUM_NODES"],
        )
