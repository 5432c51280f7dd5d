"""`towerpack launch`: starts a script as the ranks of a distributed run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# The options end at the script: what follows belongs to it, also options that we have as well.
CONTEXT = {"allow_interspersed_args": False, "ignore_unknown_options": False}


def launch(
    command: Annotated[
        list[str], typer.Argument(metavar="SCRIPT.py [ARGS]", help="The script, its arguments.")
    ],
    nproc: Annotated[
        int, typer.Option(min=1, help="The number of ranks on this node, or with --ray.")
    ] = 1,
    servers: Annotated[
        int,
        typer.Option(min=0, help="Ranks that are parameter servers, of all nodes together."),
    ] = 0,
    module: Annotated[
        bool, typer.Option("-m", "--module", help="SCRIPT.py is a module, as in `python -m`.")
    ] = False,
    nnodes: Annotated[
        int | None, typer.Option(min=1, help="The number of nodes; a scheduler gives it.")
    ] = None,
    node_rank: Annotated[
        int | None, typer.Option(min=0, help="The number of this node; a scheduler gives it.")
    ] = None,
    rendezvous: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="An address of node 0.")
    ] = None,
    rendezvous_timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How long to wait for other nodes.")
    ] = 900.0,
    ray: Annotated[
        bool, typer.Option("--ray", help="Run all ranks on the Ray cluster of RAY_ADDRESS.")
    ] = False,
    elastic: Annotated[
        str | None,
        typer.Option(metavar="MIN:MAX", help="With --ray: as many ranks as it can place."),
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often all ranks are started again.")
    ] = 3,
    hang_timeout: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Restart without progress; 0 for never."),
    ] = 600.0,
    log_dir: Annotated[
        Path | None, typer.Option(help="Where rank-N.log is written.", show_default=False)
    ] = None,
) -> None:
    """Start a script as the ranks of a distributed run; restart all if one fails.

    Exits with 0 when all ranks are done, with 130 or 143 after Ctrl-C or SIGTERM, otherwise with
    the code of the first rank that failed.
    """
    import os
    import sys

    from towerpack.core.schedulers import find_place
    from towerpack.launch.node0 import Node0
    from towerpack.launch.nodes import find_node
    from towerpack.launch.rendezvous import OneNode, OtherNode
    from towerpack.launch.restarts import FIRST_ATTEMPT, Meeting, Restarts
    from towerpack.launch.supervisor import Supervisor

    name = command[0] if module else Path(command[0]).stem
    if not module and not Path(command[0]).is_file():
        raise typer.BadParameter(f"expected a script, received {command[0]!r}: no such file")
    logs = log_dir or Path("train_log", f"{name}-ranks")
    if ray or elastic:
        from towerpack.launch.ray import RayLauncher

        if not ray:
            raise typer.BadParameter("expected --elastic only with --ray")
        if nnodes is not None or node_rank is not None or rendezvous is not None:
            raise typer.BadParameter(
                "expected --ray without --nnodes, --node-rank and --rendezvous: Ray knows the hosts"
            )
        if elastic and nproc != 1:
            raise typer.BadParameter("expected either --nproc or --elastic, received both")
        if servers:
            raise typer.BadParameter("expected --ray without --servers, which needs fixed places")
        low, high = _elastic_limits(elastic) if elastic else (nproc, nproc)
        limits = f"--max-restarts={max_restarts}", f"--hang-timeout={hang_timeout}"
        options = [*limits, f"--log-dir={logs}", *(["-m"] if module else []), *command]
        launcher = RayLauncher(options, low, high, max_restarts, rendezvous_timeout)
        raise typer.Exit(launcher.run(logs))
    job = f"{name} with --servers {servers}" if servers else name  # which must agree on all nodes
    node = find_node(nnodes, node_rank, rendezvous, job, os.environ)
    if servers and nproc * node.count < servers + 2:
        raise typer.BadParameter(
            f"expected at least {servers + 2} ranks for a chief, {servers} parameter servers and a "
            f"worker, received {nproc * node.count}; raise --nproc"
        )
    place = find_place(os.environ)
    if place is not None and place.source.startswith("Slurm"):  # which may start the job again
        begin = place.attempt * (max_restarts + 1)
        os.environ.setdefault(FIRST_ATTEMPT, f"{place.job}:{begin}")
    restarts = Restarts(max_restarts)
    meeting: Meeting
    if node.count == 1:
        meeting = OneNode(restarts)
    elif node.rank == 0:
        meeting = Node0(node.rendezvous, node.job, node.count, rendezvous_timeout, restarts)
    else:
        meeting = OtherNode(node.rendezvous, node.job, node.count, rendezvous_timeout)
    python = [sys.executable, *(["-m"] if module else []), *command]
    supervisor = Supervisor(python, nproc, node.rank, meeting, logs, hang_timeout, servers)
    raise typer.Exit(supervisor.run())


def _elastic_limits(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    if not (low.isdecimal() and high.isdecimal() and 1 <= int(low) <= int(high)):
        raise typer.BadParameter(f"--elastic: expected MIN:MAX, such as 1:4, received {text!r}")
    return int(low), int(high)
