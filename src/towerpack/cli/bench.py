"""`towerpack bench`: how fast a flow in a script is, and which of its stages is the slowest."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from towerpack.dataflow import DataFlow

MODULE = "towerpack_bench_target"  # not __main__: what the script guards by that does not run


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

    file, _, name = target.rpartition(":") if ":" in target else (target, "", "")
    path = Path(file).resolve()
    if not path.is_file():
        raise typer.BadParameter(f"there is no file {file}")
    module = _import(path)
    found = sorted(key for key, value in vars(module).items() if isinstance(value, DataFlow))
    if not name and len(found) == 1:
        name = found[0]
    if not name or not hasattr(module, name):
        there = f"flows there: {', '.join(found)}" if found else "no flow is defined there"
        raise typer.BadParameter(f"expected {file}:NAME, received {target}; {there}")
    value = getattr(module, name)
    return as_flow(value() if callable(value) and not isinstance(value, DataFlow) else value)


def _import(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise typer.BadParameter(f"{path} is not a Python file")
    sys.path.insert(0, str(path.parent))  # as when the script is run: it may import its neighbours
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    spec.loader.exec_module(module)
    return module
