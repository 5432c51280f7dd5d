"""`towerpack export`: a model in the formats of other runtimes, and what is in such files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

DEFAULT_COMMAND = "model"


class ModelByDefault(TyperGroup):
    """`towerpack export X` means `towerpack export model X`, unless X is another command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=ModelByDefault,
    no_args_is_help=True,
    help="Export a model to other runtimes, checked; list what a file holds.",
)

FormatsOption = Annotated[
    str, typer.Option(help="saved_model, frozen, text, onnx, litert, ...; separated by commas.")
]


@app.command()
def model(
    model: Annotated[str, typer.Argument(help="FILE.py:NAME or package.module:NAME.")],
    directory: Annotated[Path, typer.Argument(help="Where to write; made if it is not there.")],
    checkpoint: Annotated[str, typer.Option(help="A checkpoint, its directory, or an .npz.")],
    outputs: Annotated[str, typer.Option(help="Tensors of the tower, separated by commas.")],
    inputs: Annotated[str, typer.Option(help="Inputs that they need; by default all.")] = "",
    formats: FormatsOption = "all",
    probe: Annotated[
        Path | None, typer.Option(help="An .npz with arrays by input to compare on.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="An .npz with typical arrays by input, for litert_int8.")
    ] = None,
    ema: Annotated[
        bool, typer.Option("--ema", help="The moving averages, not the weights.")
    ] = False,
) -> None:
    """Export to all formats, or those asked for; print size, difference and latency of each."""
    from towerpack.cli.predict_model import find_config
    from towerpack.export import ModelExporter

    config = find_config(model, checkpoint, inputs, outputs, ema)
    exporter = ModelExporter(config, probe=_arrays(probe))
    _export(exporter, directory, formats, _batches(_arrays(calibration)))


@app.command()
def demo(
    directory: Annotated[Path, typer.Argument(help="Where the demo was trained.")] = Path(
        "train_log/demo"
    ),
    formats: FormatsOption = "all",
) -> None:
    """Export the model that `towerpack demo` trained, to DIRECTORY/export."""
    from towerpack.cli.demo_data import all_test_digits
    from towerpack.cli.demo_model import Digits
    from towerpack.export import ModelExporter
    from towerpack.predict import PredictConfig

    try:
        config = PredictConfig(
            model=Digits(), input_names=["image"], output_names=["prob"], session_init=directory
        )
    except FileNotFoundError as error:
        raise typer.BadParameter(f"{error}; run `towerpack demo` first") from error
    images, _ = all_test_digits()
    exporter = ModelExporter(config, probe=[images[:64]])
    _export(exporter, directory / "export", formats, _batches({"image": images[:500]}))


@app.command()
def show(
    path: Annotated[
        Path, typer.Argument(help=".pb, .pbtxt, .meta, .onnx, .tflite, or a SavedModel.")
    ],
    nodes: Annotated[bool, typer.Option("--nodes", help="List every node.")] = False,
    signature: Annotated[str, typer.Option(help="Of a SavedModel.")] = "serving_default",
) -> None:
    """Print inputs, outputs and operations of a file; with --nodes the name of every node."""
    from towerpack.export import list_graph

    listing = list_graph(path, signature)
    for title, rows in (("inputs", listing.inputs), ("outputs", listing.outputs)):
        typer.echo(f"{title}:")
        for row in rows:
            typer.echo("  " + "  ".join(row))
    typer.echo(f"{len(listing.nodes)} nodes:")
    if nodes:
        for row in listing.nodes:
            typer.echo("  " + "  ".join(row))
    else:
        for name, count in listing.operations().items():
            typer.echo(f"  {count:5} {name}")
    if listing.select_tf_ops:
        typer.echo(f"needs the select-TF-ops set for: {', '.join(listing.select_tf_ops)}")


def _export(exporter: Any, directory: Path, formats: str, calibration: Any) -> None:
    from towerpack.cli.export_formats import FORMATS, export_formats

    wanted = list(FORMATS) if formats == "all" else formats.split(",")
    unknown = [name for name in wanted if name not in FORMATS]
    if unknown:
        raise typer.BadParameter(f"expected formats of {list(FORMATS)}, received {unknown}")
    lacking = {}
    if calibration is None:
        lacking["litert_int8"] = "it needs --calibration"
    if any(spec.shape.rank == 0 or spec.shape[0] not in (None, 1) for spec in exporter.graph.specs):
        lacking["litert_batch1"] = "the model has a batch size of its own"
    for name, reason in lacking.items():
        if name in wanted:
            if formats != "all":
                raise typer.BadParameter(f"{name}: {reason}")
            wanted.remove(name)
            typer.echo(f"{name} is left out: {reason}")
    export_formats(exporter, directory, wanted, calibration)


def _arrays(path: Path | None) -> dict[str, Any] | None:
    from towerpack.checkpoint.sources import read_npz

    return None if path is None else read_npz(path)


def _batches(arrays: dict[str, Any] | None, size: int = 10) -> list[dict[str, Any]] | None:
    if arrays is None:
        return None
    rows = min(len(array) for array in arrays.values())
    return [
        {name: array[start : start + size] for name, array in arrays.items()}
        for start in range(0, rows, size)
    ]
