"""`towerpack sweep`: trains a program many times and searches for its best settings with optuna."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE.py", help="As for towerpack train.")],
    space: Annotated[
        list[str],
        typer.Argument(
            metavar="SPACE...",
            help="'lr=log(1e-4,1e-1)', 'x=uniform(0,1)', 'n=int(1,9)' (or 'int(1,999,log)'), "
            "units=32,64 for choices, epochs=5 for a setting of all trials.",
        ),
    ],
    trials: Annotated[int, typer.Option(min=1, help="The number of trials in the end.")] = 20,
    metric: Annotated[str, typer.Option(help="A scalar that runs log.")] = "validation_error",
    maximize: Annotated[bool, typer.Option("--maximize", help="Large values are good.")] = False,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="By default train_log/sweep-FILE.", show_default=False),
    ] = None,
    prune: Annotated[
        bool, typer.Option(help="Stop trials that are worse than the median of the others.")
    ] = True,
    timeout: Annotated[
        str, typer.Option(help="Begin no trial after this time, such as '8 h'.", show_default=False)
    ] = "",
    seed: Annotated[int, typer.Option(help="Fixes what is tried, and the trials' seeds.")] = 0,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changed-file", help="Continue although FILE.py has changed.")
    ] = False,
) -> None:
    """Search for the best settings of FILE.py: each trial is a run in a process of its own.

    The same command continues a sweep that was interrupted, even by SIGKILL.
    """
    from towerpack.cli.search_space import parse_space
    from towerpack.core.files import sha256_of
    from towerpack.core.optional import require
    from towerpack.core.run_lock import RunLock
    from towerpack.report.sweep import FORMAT

    require("optuna", extra="sweep")
    from towerpack.cli.sweep_run import Sweep, begin, check_settings, sigterm_exits

    searched = parse_space(space)
    seconds = _seconds(timeout)
    check_settings(file, searched)
    directory = directory or Path("train_log", f"sweep-{file.stem}")
    description = {
        "format": FORMAT,
        "file": str(file),
        "sha256": sha256_of(file),
        "space": space,
        "parameters": [asdict(each) for each in searched.parameters],
        "fixed": searched.fixed,
        "metric": metric,
        "maximize": maximize,
        "prune": prune,
        "seed": seed,
    }
    lock = RunLock(directory)
    try:
        begin(directory, description, accept_changes)
        with sigterm_exits():
            Sweep(directory, searched, description).run(trials, seconds)
    finally:
        lock.release()


def _seconds(timeout: str) -> float:
    from towerpack.core.every import every

    if not timeout:
        return float("inf")
    limit = every(timeout)
    if limit.unit != "seconds":
        raise typer.BadParameter(
            f"expected --timeout as a time, such as '8 h', received {timeout!r}"
        )
    return limit.count
