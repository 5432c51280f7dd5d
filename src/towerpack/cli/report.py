"""`towerpack report`: a page to look at one run, or at several laid over each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

REPORT_FILE = "report.html"


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="Directories of runs.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The page; by default report.html in the first run."),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Follow the runs on a page served on this machine.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="For --serve; 0: a free one.")] = 0,
) -> None:
    """Write one HTML page of curves, times, data flow, checkpoints and pictures of runs."""
    from towerpack.core.files import atomic_file
    from towerpack.report import read_run, render_page

    if serve and output:
        raise typer.BadParameter("expected --serve or --output, received both")
    for directory in runs:
        if not directory.is_dir():
            raise NotADirectoryError(f"expected a run's directory, received {directory}")
    if serve:
        _serve(runs, port)
        return
    page = render_page([read_run(directory) for directory in runs])
    path = output or runs[0] / REPORT_FILE
    with atomic_file(path, "w") as file:
        file.write(page)
    typer.echo(f"{len(runs)} run{'s' if len(runs) > 1 else ''} -> {path}")


def _serve(runs: list[Path], port: int) -> None:
    from towerpack.report import serve_report

    with serve_report(runs, port) as server:
        typer.echo(f"{server.address} (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass  # that is how it is ended
