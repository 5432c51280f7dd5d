"""The commands and their arguments."""

from __future__ import annotations

from typing import Annotated

import typer

from towerpack._version import __version__
from towerpack.cli import ckpt, data, export
from towerpack.cli.bench import bench
from towerpack.cli.errors import Commands
from towerpack.cli.predict import predict
from towerpack.cli.report import report
from towerpack.cli.runs import runs

app = typer.Typer(
    name="towerpack",
    cls=Commands,
    help="Training with TensorFlow: a demo, and what a bug report needs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a plain traceback is what people paste and search for
)
app.add_typer(data.app, name="data")
app.add_typer(export.app, name="export")
app.add_typer(ckpt.app, name="ckpt")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"towerpack {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print it and exit."
        ),
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where in the code an error arose.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the 5,000 digits.")] = 15,
) -> None:
    """Train a small network on digits and draw what it learned."""
    from towerpack.cli import demo as demonstration

    demonstration.main(epochs=epochs)


app.command()(bench)
app.command()(predict)
app.command()(report)
app.command()(runs)


@app.command()
def env() -> None:
    """Print versions, devices and CPU features, for bug reports."""
    from towerpack.cli.env import describe_environment

    for key, value in describe_environment():
        typer.echo(f"{key + ':':25}{value}")
