"""`towerpack export`: write a model in the formats of other runtimes, and list such files."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from typer.core import TyperGroup

from towerpack.cli.script import load_config

if TYPE_CHECKING:
    from towerpack.export import ExportReport, ModelExporter

DEFAULT_COMMAND = "model"
WARM_UP = 3  # calls: the first ones allocate, and some runtimes compile
LONGEST = 0.5  # seconds
MOST_CALLS = 200
BATCHES = (1, 64)
CALIBRATION_BATCH = 10


class ModelByDefault(TyperGroup):
    """`towerpack export X` means `towerpack export model X`, unless X is another command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=ModelByDefault,
    no_args_is_help=True,
    help="Export a model to other runtimes, with a check; list what a file holds.",
)

FormatsOption = Annotated[
    str, typer.Option(help="saved_model, frozen, text, onnx, litert, ...; separated by commas.")
]


@app.command()
def model(
    model: Annotated[str, typer.Argument(help="FILE.py:NAME or package.module:NAME.")],
    directory: Annotated[Path, typer.Argument(help="Where to write; created if needed.")],
    checkpoint: Annotated[str, typer.Option(help="A checkpoint, its directory, or an .npz.")],
    outputs: Annotated[str, typer.Option(help="Tensors of the tower, separated by commas.")],
    inputs: Annotated[str, typer.Option(help="Inputs that the outputs need; by default all.")] = "",
    formats: FormatsOption = "all",
    probe: Annotated[
        Path | None, typer.Option(help="An .npz with arrays by input to compare on.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="An .npz with typical arrays by input, for litert_int8.")
    ] = None,
    ema: Annotated[
        bool, typer.Option("--ema", help="Export moving averages of the weights.")
    ] = False,
) -> None:
    """Export to all formats, or to those of --formats; print size, difference and latency."""
    from towerpack.export import ModelExporter

    config = load_config(model, checkpoint, inputs, outputs, ema)
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
    from towerpack.cli.demo import Digits
    from towerpack.cli.demo_data import all_test_digits
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


def _export(
    exporter: ModelExporter, directory: Path, formats: str, calibration: list[Any] | None
) -> None:
    """Exports to these formats; if one fails, that is logged, and the others are still tried.

    Raises `ExportError` at the end if any failed.
    """
    from towerpack.core import logger
    from towerpack.export import ExportError
    from towerpack.export.exporter import COMMAND_FORMATS

    reports, failures = [], []
    for name in _wanted_formats(exporter, formats, calibration):
        try:
            report = COMMAND_FORMATS[name](exporter, directory, calibration)
        except (ExportError, ValueError, ImportError) as error:
            logger.error("%s: %s", name, error)
            failures.append(name)
            continue
        _measure(report, exporter)
        reports.append(report)
    _print_table(reports)
    if failures:
        raise ExportError(f"these formats were not exported: {', '.join(failures)}; see above")


def _wanted_formats(exporter: ModelExporter, formats: str, calibration: Any) -> list[str]:
    from towerpack.export.exporter import COMMAND_FORMATS

    wanted = list(COMMAND_FORMATS) if formats == "all" else formats.split(",")
    unknown = [name for name in wanted if name not in COMMAND_FORMATS]
    if unknown:
        raise typer.BadParameter(f"expected formats of {list(COMMAND_FORMATS)}, received {unknown}")
    impossible = {}
    if calibration is None:
        impossible["litert_int8"] = "it needs --calibration"
    if any(spec.shape.rank == 0 or spec.shape[0] not in (None, 1) for spec in exporter.graph.specs):
        impossible["litert_batch1"] = "the model has another fixed batch size"
    for name in wanted:
        if name in impossible and formats != "all":
            raise typer.BadParameter(f"{name}: {impossible[name]}")
        if name in impossible:
            typer.echo(f"{name} is left out: {impossible[name]}")
    return [name for name in wanted if name not in impossible]


def _measure(report: ExportReport, exporter: ModelExporter) -> None:
    """Adds the latency for each batch size that the model takes, if it can be run here."""
    from towerpack.export import open_export
    from towerpack.export.compare import probe_inputs
    from towerpack.export.exporter import OPENERS
    from towerpack.export.record import write_record

    if report.format.partition(" ")[0] not in OPENERS or report.largest_difference is None:
        return
    inputs = probe_inputs(exporter.graph.specs, exporter.probe)
    export = open_export(report.path)
    for size in BATCHES:
        if all(shape and shape[0] in (None, size) for _, shape in report.inputs.values()):
            batch = {name: np.resize(x, (size, *x.shape[1:])) for name, x in inputs.items()}
            report.latency_ms[str(size)] = round(_latency_ms(export, batch), 3)
    write_record(report)


def _latency_ms(run: Callable[[Any], Any], inputs: dict[str, Any]) -> float:
    """The median time of a call in milliseconds."""
    for _ in range(WARM_UP):
        run(inputs)
    times: list[float] = []
    while len(times) < MOST_CALLS and sum(times) < LONGEST:
        start = time.perf_counter()
        run(inputs)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1000


def _print_table(reports: Sequence[ExportReport]) -> None:
    """Prints the reports as a table of Markdown."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.MARKDOWN)
    for heading in ("format", "file"):
        table.add_column(heading, no_wrap=True)
    for heading in ("MB", "diff.", *(f"ms at {n}" for n in BATCHES)):
        table.add_column(heading, no_wrap=True, justify="right")
    for report in reports:
        difference = report.largest_difference
        table.add_row(
            report.format,
            report.path.name,
            f"{report.bytes / 1e6:.2f}",
            "not run" if difference is None else f"{difference:.1e}",
            *(_milliseconds(report.latency_ms.get(str(size))) for size in BATCHES),
        )
    Console().print(table)
    Console().print("diff.: the largest from the tower; ms at n: one call with a batch of n")


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _arrays(path: Path | None) -> dict[str, Any] | None:
    from towerpack.checkpoint.sources import read_npz

    return None if path is None else read_npz(path)


def _batches(arrays: dict[str, Any] | None) -> list[dict[str, Any]] | None:
    if arrays is None:
        return None
    rows = min(len(array) for array in arrays.values())
    return [
        {name: array[start : start + CALIBRATION_BATCH] for name, array in arrays.items()}
        for start in range(0, rows, CALIBRATION_BATCH)
    ]
