"""`towerpack predict`: files through a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer


def predict(
    model: Annotated[
        str, typer.Argument(help="An export (file or directory), or FILE.py:NAME of a ModelDesc.")
    ],
    input: Annotated[Path, typer.Option(help="Images: a directory or a file; or an .npz.")],
    output: Annotated[Path, typer.Option(help="An .npz or .json file, or a directory.")],
    checkpoint: Annotated[str, typer.Option(help="For FILE.py:NAME: its weights.")] = "",
    inputs: Annotated[str, typer.Option(help="For FILE.py:NAME: inputs needed, or all.")] = "",
    outputs: Annotated[str, typer.Option(help="For FILE.py:NAME: tensors, with commas.")] = "",
    batch: Annotated[int, typer.Option(min=1, help="Rows in one call.")] = 64,
    scale: Annotated[
        float, typer.Option(help="Pixels times this, where the model takes floats.")
    ] = 1 / 255,
    ema: Annotated[
        bool, typer.Option("--ema", help="The moving averages, not the weights.")
    ] = False,
) -> None:
    """Predict images or the rows of an .npz; a directory gets a file, or picture, for each."""
    import numpy as np

    from towerpack.cli.predict_files import read_inputs, write_outputs
    from towerpack.core.progress import Progress

    specs, run = _open(model, checkpoint, inputs, outputs, ema)
    rows = read_inputs(input, specs, scale)
    parts: list[dict[str, Any]] = []
    with Progress(len(rows), "predicting", "rows") as bar:
        for start in range(0, len(rows), batch):
            part = {name: array[start : start + batch] for name, array in rows.arrays.items()}
            parts.append(run(part))
            bar.update(min(batch, len(rows) - start))
    results = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    write_outputs(output, results, rows.names)
    typer.echo(f"{len(rows)} predicted: {', '.join(results)} -> {output}")


def _open(
    model: str, checkpoint: str, inputs: str, outputs: str, ema: bool
) -> tuple[dict[str, Any], Callable[[dict[str, Any]], dict[str, Any]]]:
    """The inputs of the model, and a function from arrays to arrays by name."""
    from towerpack.cli.predict_model import find_config
    from towerpack.export.open_export import open_export
    from towerpack.predict import OfflinePredictor

    if Path(model).exists():
        try:
            export = open_export(model)
        except FileNotFoundError as error:
            raise typer.BadParameter(str(error)) from error
        return export.inputs, export
    config = find_config(model, checkpoint, inputs, outputs, ema)
    predictor = OfflinePredictor(config)
    specs = {spec.name: (spec.dtype.name, spec.shape.as_list()) for spec in config.input_specs}

    def run(arrays: dict[str, Any]) -> dict[str, Any]:
        values = predictor(*(arrays[name] for name in config.input_names))
        return dict(zip(config.output_names, values, strict=True))

    return specs, run
