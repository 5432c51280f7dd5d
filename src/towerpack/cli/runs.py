"""`towerpack runs`: a table of the runs under a directory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
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
COLUMNS: dict[str, dict[str, Any]] = {
    "run": {"overflow": "fold", "style": "bold"},
    "state": {},
    "epoch": {"justify": "right"},
    "step": {"justify": "right"},
    "steps/s": {"justify": "right"},
    "devices": {},
    "best": {"overflow": "fold"},
    "size": {"justify": "right"},
    "changed": {"justify": "right"},
}
# How many best values, and which columns not: from what a wide terminal shows to a narrow one.
LAYOUTS: tuple[tuple[int, tuple[str, ...]], ...] = (
    *((3, ()), (2, ()), (1, ())),
    *((1, ("devices",)), (1, ("devices", "step")), (1, ("devices", "step", "changed"))),
)
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
        raise NotADirectoryError(f"there is no directory {directory}")
    found = find_runs(directory)
    if not found:
        typer.echo(f"no runs under {directory}")
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    console.print(fitting_table(found, directory, time.time(), console))


def fitting_table(found: list[RunSummary], directory: Path, now: float, console: Console) -> Table:
    """The widest that fits: fewer best values, and then fewer columns, on a narrow terminal."""
    from rich.measure import Measurement

    unlimited = console.options.update(max_width=10**4)
    for bests, left_out in LAYOUTS:
        made = table(found, directory, now, bests, left_out)
        if Measurement.get(console, unlimited, made).maximum <= console.width:
            break
    return made


def table(
    found: list[RunSummary],
    directory: Path,
    now: float,
    bests: int = 3,
    left_out: tuple[str, ...] = (),
) -> Table:
    from rich import box
    from rich.table import Table

    columns = {name: kind for name, kind in COLUMNS.items() if name not in left_out}
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name, options in columns.items():
        made.add_column(name, **options)
    for run in found:
        cells = _cells(run, directory, now, bests)
        made.add_row(*[cells[name] for name in columns])
    return made


def _cells(run: RunSummary, directory: Path, now: float, bests: int) -> dict[str, str]:
    from rich.markup import escape

    name = str(run.directory.relative_to(directory))
    state = f"[{COLOURS.get(run.state, 'dim')}]{run.state}[/]"
    if run.error:
        state += f": {escape(run.error.partition(':')[0])}"
    limit = f"/{run.max_epoch}" if 0 < run.max_epoch < NO_LIMIT else ""
    best = [f"{key} {value:.5g}" for key, value in run.best.items()][:bests]
    return {
        "run": escape(run.directory.resolve().name if name == "." else name),
        "state": state,
        "epoch": f"{run.epoch}{limit}",
        "step": f"{run.step:,}",
        "steps/s": "" if run.steps_per_second is None else f"{run.steps_per_second:.4g}",
        "devices": escape(run.devices),
        "best": escape("  ".join(best)),
        "size": size(run.size),
        "changed": f"{since(now - run.updated)} ago",
    }


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
