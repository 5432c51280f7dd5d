"""How a command line names a model: `FILE.py:NAME` or `package.module:NAME`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

import typer

from towerpack.models import ModelDescBase
from towerpack.predict import PredictConfig


def find_model(text: str) -> ModelDescBase:
    """The model: a `ModelDesc` class or instance, or a function that returns one."""
    where, _, name = text.rpartition(":")
    if not where or not name:
        raise typer.BadParameter(
            f"expected FILE.py:NAME or package.module:NAME, or an export, received {text!r}"
        )
    module = _import_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    if not hasattr(module, name):
        there = [
            key
            for key, value in vars(module).items()
            if inspect.isclass(value) and issubclass(value, ModelDescBase)
        ]
        raise typer.BadParameter(f"{where} has no {name!r}; models in it: {there}")
    found = getattr(module, name)
    if not isinstance(found, ModelDescBase):
        found = found()
    if not isinstance(found, ModelDescBase):
        raise typer.BadParameter(f"expected {text} to be a ModelDesc, received {found!r}")
    return found


def find_config(
    model: str,
    checkpoint: str,
    inputs: str,
    outputs: str,
    ema: bool,
) -> PredictConfig:
    """The config for a model by name with a checkpoint; names are separated by commas."""
    if not outputs:
        raise typer.BadParameter("expected --outputs: names of tensors, separated by commas")
    if not checkpoint:
        raise typer.BadParameter("expected --checkpoint: a checkpoint, its directory, or an .npz")
    return PredictConfig(
        model=find_model(model),
        input_names=_split(inputs) or None,
        output_names=_split(outputs),
        session_init=checkpoint,
        ema=ema,
    )


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _import_file(path: Path) -> Any:
    if not path.exists():
        raise typer.BadParameter(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise typer.BadParameter(f"{path} cannot be imported")
    sys.path.insert(0, str(path.parent.resolve()))  # as Python does for a script
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
