"""`towerpack bench`: how fast a flow in a script is, and which of its stages is the slowest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from towerpack.cli.script import load_object

if TYPE_CHECKING:
    from towerpack.dataflow import DataFlow


def bench(
    target: Annotated[
        str, typer.Argument(metavar="FILE.py:NAME", help="A flow, or a function that makes one.")
    ],
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to run it.")] = 5.0,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time goes.")] = False,
) -> None:
    """Measure a DataFlow: throughput, the cost of each stage, and what to do about the slowest."""
    from rich.console import Console

    from towerpack.dataflow import bench as run

    result = run(load_flow(target), seconds=seconds, profile=profile)
    console = Console()
    console.print(result.table())
    for line in result.lines():
        console.print(line, markup=False, highlight=False)


def load_flow(target: str) -> DataFlow:
    """The flow named by `FILE.py:NAME`; the script is imported, not run as the main program."""
    from towerpack.dataflow import DataFlow, as_flow

    value = load_object(target, DataFlow, "flow")
    try:
        return as_flow(value)
    except TypeError as error:
        raise typer.BadParameter(f"{target}: {error}") from error
