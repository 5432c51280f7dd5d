"""The model and the names that a command line gives, as a `PredictConfig`."""

from __future__ import annotations

import typer

from towerpack.cli.script import load_object
from towerpack.models import ModelDescBase
from towerpack.predict import PredictConfig


def find_model(text: str) -> ModelDescBase:
    """The model: a `ModelDesc` class or instance, or a function that returns one."""
    found = load_object(text, ModelDescBase, "model")
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
