"""`towerpack report` and `towerpack runs`: one page about runs, and a table of the runs."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from towerpack.core.plain_settings import as_overrides, differing_keys

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from towerpack.report import RunSummary

REPORT_FILE = "report.html"
COLOURS = {
    "finished": "green",
    "running": "blue",
    "failed": "red",
    "killed": "red",
    "interrupted": "yellow",
}
PIPE_WIDTH = 200  # characters, if the output is not a terminal
TEXTS = ("run", "state", "devices", "best", "settings")  # columns that are aligned to the left
# The number of best values, and the columns left out, from wide terminals to narrow ones.
LAYOUTS = (
    (3, ""),
    (2, ""),
    (1, ""),
    (1, "devices"),
    (1, "devices step"),
    (1, "devices step changed"),
)
NO_LIMIT = 10**4  # a limit of more epochs than this means "until I stop it"


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_DIR...", help="Directories of runs, or that of a sweep."),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The page; by default report.html in the first run."),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve a page on this machine that follows the runs.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="For --serve; 0: a free one.")] = 0,
) -> None:
    """Write one HTML page of curves, times, data flow, checkpoints and pictures of runs.

    The page of a sweep, sweep.html in its directory, compares its trials.
    """
    from towerpack.core.files import atomic_file
    from towerpack.report import read_run, render_page, serve_report
    from towerpack.report.sweep import SWEEP_FILE, SWEEP_PAGE, read_sweep, render_sweep

    if serve and output:
        raise typer.BadParameter("expected --serve or --output, received both")
    for directory in runs:
        if not directory.is_dir():
            raise NotADirectoryError(f"expected a run's directory, received {directory}")
    if serve:
        with serve_report(runs, port) as server:
            typer.echo(f"{server.address} (press Ctrl-C to stop)")
            with suppress(KeyboardInterrupt):  # the user stops the server this way
                server.serve_forever()
        return
    if len(runs) == 1 and (runs[0] / SWEEP_FILE).exists():
        found = read_sweep(runs[0])
        page, path = render_sweep(found), output or runs[0] / SWEEP_PAGE
        what = f"{len(found['trials'])} trials"
    else:
        page = render_page([read_run(directory) for directory in runs])
        path = output or runs[0] / REPORT_FILE
        what = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    with atomic_file(path, "w") as file:
        file.write(page)
    typer.echo(f"{what} -> {path}")


def runs(
    directories: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR]...", help="Searched at any depth; by default train_log."),
    ] = None,
) -> None:
    """List the runs under directories: state, epoch, speed, best values, settings that differ."""
    from rich.console import Console

    from towerpack.report import find_runs

    directories = directories or [Path("train_log")]
    for directory in directories:
        if not directory.is_dir():
            raise NotADirectoryError(f"there is no directory {directory}")
    places = [Path(os.path.abspath(directory)) for directory in directories]
    by_directory = {run.directory: run for place in places for run in find_runs(place)}
    found = sorted(by_directory.values(), key=lambda run: -run.updated)
    if not found:
        typer.echo(f"no runs under {', '.join(map(str, directories))}")
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    root = Path(os.path.commonpath(places))
    console.print(fitting_table(found, root, time.time(), console))


def fitting_table(found: list[RunSummary], directory: Path, now: float, console: Console) -> Table:
    """The widest table that fits; a narrow terminal gets fewer best values, then fewer columns."""
    from rich import box
    from rich.measure import Measurement
    from rich.table import Table

    with_settings = [run.settings for run in found if run.settings]
    shown = differing_keys(with_settings)
    unlimited = console.options.update(max_width=10**4)
    for bests, left_out in LAYOUTS:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        rows = [_cells(run, directory, now, bests, shown) for run in found]
        unused = [*left_out.split(), *([] if shown else ["settings"])]
        columns = [name for name in rows[0] if name not in unused]
        for name in columns:
            table.add_column(name, overflow="fold", justify="left" if name in TEXTS else "right")
        for row in rows:
            table.add_row(*[row[name] for name in columns])
        if Measurement.get(console, unlimited, table).maximum <= console.width:
            break
    return table


def _cells(
    run: RunSummary, directory: Path, now: float, bests: int, shown: list[str]
) -> dict[str, str]:
    from rich.filesize import decimal
    from rich.markup import escape

    name = str(run.directory.relative_to(directory))
    state = f"[{COLOURS.get(run.state, 'dim')}]{run.state}[/]"
    if run.error:
        state += f": {escape(run.error.partition(':')[0])}"
    limit = f"/{run.max_epoch}" if 0 < run.max_epoch < NO_LIMIT else ""
    best = [f"{key} {value:.5g}" for key, value in run.best.items()][:bests]
    settings = as_overrides({key: run.settings[key] for key in shown if key in run.settings})
    return {
        "run": f"[bold]{escape(run.directory.resolve().name if name == '.' else name)}[/]",
        "state": state,
        "epoch": f"{run.epoch}{limit}",
        "step": f"{run.step:,}",
        "steps/s": "" if run.steps_per_second is None else f"{run.steps_per_second:.4g}",
        "devices": escape(run.devices),
        "best": escape("  ".join(best)),
        "settings": escape("  ".join(settings)),
        "size": decimal(run.size),
        "changed": f"{_since(now - run.updated)} ago",
    }


def _since(seconds: float) -> str:
    """A duration in its largest unit.

    >>> _since(7), _since(3700), _since(200_000)
    ('7 s', '1 h', '2 d')
    """
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
