"""`towerpack runs`: a table of the runs under a directory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from towerpack.report import RunSummary

COLOURS = {
    "finished": "green",
    "running": "blue",
    "failed": "red",
    "killed": "red",
    "interrupted": "yellow",
}
PIPE_WIDTH = 200  # characters, where there is no terminal that would say
NO_LIMIT = 10**4  # from this many epochs on, the number means "until I stop it"


def runs(
    directory: Annotated[Path, typer.Argument(help="Where to look, at any depth.")] = Path(
        "train_log"
    ),
) -> None:
    """List the runs under a directory: state, epoch, speed, devices, best values, size."""
    from rich.console import Console

    from towerpack.report import find_runs

    if not directory.is_dir():
        typer.echo(f"error: there is no directory {directory}", err=True)
        raise typer.Exit(1)
    found = find_runs(directory)
    if not found:
        typer.echo(f"no runs under {directory}")
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    console.print(table(found, directory, time.time()))


def table(found: list[RunSummary], directory: Path, now: float) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column("run", overflow="fold", style="bold")
    made.add_column("state")
    for name in ("epoch", "step", "steps/s"):
        made.add_column(name, justify="right")
    made.add_column("devices")
    made.add_column("best", overflow="fold")
    made.add_column("size", justify="right")
    made.add_column("changed", justify="right")
    for run in found:
        name = str(run.directory.relative_to(directory))
        state = f"[{COLOURS.get(run.state, 'dim')}]{run.state}[/]"
        if run.error:
            state += f": {escape(run.error.partition(':')[0])}"
        limit = f"/{run.max_epoch}" if 0 < run.max_epoch < NO_LIMIT else ""
        made.add_row(
            escape(run.directory.resolve().name if name == "." else name),
            state,
            f"{run.epoch}{limit}",
            f"{run.step:,}",
            "" if run.steps_per_second is None else f"{run.steps_per_second:.4g}",
            escape(run.devices),
            escape("  ".join(f"{key} {value:.5g}" for key, value in run.best.items())),
            size(run.size),
            f"{since(now - run.updated)} ago",
        )
    return made


def size(count: float) -> str:
    """Bytes for people.

    >>> size(999), size(12_345_678)
    ('999 B', '12.3 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def since(seconds: float) -> str:
    """A time for people, to its largest unit.

    >>> since(7), since(3700), since(200_000)
    ('7 s', '1 h', '2 d')
    """
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
