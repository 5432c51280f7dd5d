"""`towerpack predict`: run a model on images or arrays, and write its outputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from towerpack.cli.common import EmaOption, load_config

if TYPE_CHECKING:
    from towerpack.cli.predict_files import InputSpecs, Results, Rows

PIXEL_SCALE = 1 / 255  # pixels become numbers in [0, 1]


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
        int, typer.Option(min=1, help="Rows in one call, if the model's batch size is open.")
    ] = 64,
    scale: Annotated[
        float, typer.Option(help="Factor of pixels if the model takes floats.")
    ] = PIXEL_SCALE,
    bgr: Annotated[bool, typer.Option("--bgr", help="Pictures are BGR, not RGB.")] = False,
    ema: EmaOption = False,
) -> None:
    """Predict images or the rows of an .npz; a directory gets a file or picture for each."""
    from towerpack.cli.predict_files import open_inputs, write_file, write_files
    from towerpack.core.progress import Progress
    from towerpack.export.compare import in_batches

    specs, run = _open(model, checkpoint, inputs, outputs, ema)
    names, read = open_inputs(input, specs, scale, bgr)
    fixed = {shape[0] for _, shape in specs.values() if shape}
    fixed_size = fixed.pop() if len(fixed) == 1 else None
    size = fixed_size or batch

    def results() -> Results:
        """The names of each batch of rows, and its outputs."""
        with Progress(len(names), "predicting", "rows") as bar:
            for start in range(0, len(names), size):
                some = names[start : start + size]
                given = read(range(start, start + len(some)))
                if fixed_size:
                    (given,) = in_batches(given, size)  # the last one is filled up
                found = run(given)
                expected = size if fixed_size else len(some)
                for key, array in found.items():
                    if array.shape[:1] != (expected,):
                        raise typer.BadParameter(
                            f"expected outputs with a row for each of {expected} inputs, received "
                            f"{key!r} of shape {array.shape}"
                        )
                yield some, {key: array[: len(some)] for key, array in found.items()}
                bar.update(len(some))

    if output.suffix in (".npz", ".json"):
        keys = write_file(output, results())
    else:
        keys = write_files(output, results(), names, bgr)
    typer.echo(f"{len(names)} predicted: {', '.join(keys)} -> {output}")


def _open(
    model: str, checkpoint: str, inputs: str, outputs: str, ema: bool
) -> tuple[InputSpecs, Callable[[Rows], Rows]]:
    """The inputs of the model, and a function from arrays to arrays by name."""
    from towerpack.export import open_export
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
    config = load_config(model, checkpoint, inputs, outputs, ema)
    predictor = OfflinePredictor(config)
    specs = {spec.name: (spec.dtype.name, spec.shape.as_list()) for spec in config.input_specs}

    def run(arrays: Rows) -> Rows:
        values = predictor(*(arrays[name] for name in config.input_names))
        return dict(zip(config.output_names, values, strict=True))

    return specs, run
