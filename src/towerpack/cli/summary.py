"""`towerpack summary`: the table of a model's layers, and their picture."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from towerpack.cli.common import load_object
from towerpack.cli.program import is_program, load_program
from towerpack.core.settings import SettingsError, read_settings

if TYPE_CHECKING:
    from towerpack.models import ModelTable


def summary(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="FILE.py of `towerpack train`, FILE.py:MODEL, a .keras file, the directory of a "
            "run, or a checkpoint (parameters only).",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings of FILE.py."),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(help="Draw the layers to this .png, .svg or .pdf.", show_default=False),
    ] = None,
) -> None:
    """Print a model's layers: shapes, parameters, FLOPs and memory."""
    from rich.console import Console

    found = _table(target, overrides or [])
    console = Console()
    if console.is_terminal:
        console.print(found)
    else:
        typer.echo(str(found))
    if picture is not None:
        from towerpack.models.picture import draw_layers

        draw_layers(found.nodes, picture)
        typer.echo(f"drawn to {picture}")


def _table(target: str, overrides: Sequence[str]) -> ModelTable:
    is_code = target.endswith(".py") or ".py:" in target
    if overrides and not target.endswith(".py"):
        raise typer.BadParameter(f"expected key=value only after FILE.py, received {target}")
    if is_code:
        return _of_code(target, overrides)
    if target.endswith(".keras"):
        return _of_keras(target)
    path = Path(target)
    stored = _stored(path if path.is_dir() else path.parent)
    return _of_checkpoint(path) if stored is None else stored


def _of_code(target: str, overrides: Sequence[str]) -> ModelTable:
    from towerpack.models import ModelDescBase, model_summary

    if target.endswith(".py") and is_program(Path(target)):
        program = load_program(Path(target))
        try:
            values = read_settings(program.settings, None, overrides)
        except SettingsError as error:
            raise typer.BadParameter(str(error)) from error
        config, _ = program.make(values)
        return model_summary(config.model)
    if overrides:
        raise typer.BadParameter(f"expected {target} to define get_config or config to take keys")
    return model_summary(load_object(target, ModelDescBase, "model"))


def _of_keras(path: str) -> ModelTable:
    from towerpack._tensorflow import tf
    from towerpack.models import model_summary

    return model_summary(tf.keras.models.load_model(path, compile=False))


def _stored(directory: Path) -> ModelTable | None:
    """The table that a run has stored in its directory; None if there is none."""
    from towerpack.callbacks import ModelSummary
    from towerpack.models import ModelTable

    file = directory / ModelSummary.FILE
    if not file.exists():
        return None
    try:
        return ModelTable.from_dict(json.loads(file.read_text("utf-8")))
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise ValueError(f"{file} is not the table of a model: {error}") from error


def _of_checkpoint(path: Path) -> ModelTable:
    """A row for each scope of variables: a checkpoint does not know layers."""
    from towerpack.checkpoint.variable_names import own_names
    from towerpack.checkpoint.variables import open_source
    from towerpack.models.summary import ModelTable, Row

    entries = open_source(path).entries
    sizes = {name: math.prod(entry.shape) for name, entry in entries.items()}
    own = own_names(entries, entries)
    bytes_of = {name: sizes[name] * _item_size(entry.dtype) for name, entry in entries.items()}
    scopes: dict[str, list[str]] = {}
    for name in own:
        scopes.setdefault(name.rpartition("/")[0] or name, []).append(name)
    rows = []
    for scope, names in scopes.items():
        shapes = ", ".join(str(list(entries[name].shape)) for name in names)
        rows.append(Row(scope, "variables", shapes, sum(sizes[n] for n in names), 0, None, None))
    return ModelTable(
        rows=rows,
        parameters=sum(sizes[name] for name in own),
        trainable=None,
        weights=sum(bytes_of[name] for name in own),
        state=0,
        optimizer=sum(bytes_of[name] for name in entries if name not in own),
        note=f"{path} has variables but no layers: FLOPs are unknown, and so is what is trained",
    )


def _item_size(dtype: str) -> int:
    from towerpack._tensorflow import tf

    return int(tf.as_dtype(dtype).size)
