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
    batch: Annotated[
        int, typer.Option(min=1, help="Rows in one call, where the model leaves it open.")
    ] = 64,
    scale: Annotated[
        float, typer.Option(help="Pixels times this, where the model takes floats.")
    ] = 1 / 255,
    bgr: Annotated[bool, typer.Option("--bgr", help="Pictures as BGR instead of RGB.")] = False,
    ema: Annotated[
        bool, typer.Option("--ema", help="The moving averages, not the weights.")
    ] = False,
) -> None:
    """Predict images or the rows of an .npz; a directory gets a file, or picture, for each."""
    from towerpack.cli.predict_inputs import open_inputs
    from towerpack.cli.predict_outputs import open_outputs
    from towerpack.core.progress import Progress
    from towerpack.export.compare import in_batches

    specs, run = _open(model, checkpoint, inputs, outputs, ema)
    rows = open_inputs(input, specs, scale, bgr)
    results = open_outputs(output, rows.names, bgr)
    fixed = _fixed_batch(specs)
    size, keys = fixed or batch, ""
    with Progress(len(rows), "predicting", "rows") as bar:
        for start in range(0, len(rows), size):
            names = rows.names[start : start + size]
            given = rows.read(range(start, start + len(names)))
            if fixed:
                (given,) = in_batches(given, size)  # the last one filled up
            found = run(given)
            _check_rows(found, size if fixed else len(names))
            results.add(names, {key: array[: len(names)] for key, array in found.items()})
            keys = ", ".join(found)
            bar.update(len(names))
    results.close()
    typer.echo(f"{len(rows)} predicted: {keys} -> {output}")


def _fixed_batch(specs: dict[str, Any]) -> int | None:
    """The batch size that the model's inputs have, if it is fixed."""
    sizes = {shape[0] for _, shape in specs.values() if shape}
    return sizes.pop() if len(sizes) == 1 else None


def _check_rows(outputs: dict[str, Any], rows: int) -> None:
    for key, array in outputs.items():
        if array.shape[:1] != (rows,):
            raise typer.BadParameter(
                f"expected outputs with a row for each of {rows} inputs, received {key!r} of shape "
                f"{array.shape}"
            )


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
    if ":" not in model:
        raise typer.BadParameter(
            f"there is no file or directory {model}; expected an export, or FILE.py:NAME of a model"
        )
    config = find_config(model, checkpoint, inputs, outputs, ema)
    predictor = OfflinePredictor(config)
    specs = {spec.name: (spec.dtype.name, spec.shape.as_list()) for spec in config.input_specs}

    def run(arrays: dict[str, Any]) -> dict[str, Any]:
        values = predictor(*(arrays[name] for name in config.input_names))
        return dict(zip(config.output_names, values, strict=True))

    return specs, run
