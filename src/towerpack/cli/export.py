"""`towerpack export`: write a model in the formats of other runtimes, and list such files."""

from __future__ import annotations

import statistics
import timeit
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from towerpack.cli.common import EmaOption, load_config

if TYPE_CHECKING:
    from towerpack.export import ExportReport, ModelExporter

WARM_UP = 3  # calls: the first ones allocate, and some runtimes compile
CALLS = 30
BATCHES = (1, 64)
CALIBRATION_BATCH = 10


class ModelByDefault(TyperGroup):
    """`towerpack export X` means `towerpack export model X`, unless X is another command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["model", *args]
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
    ema: EmaOption = False,
) -> None:
    """Export to all formats, or to those of --formats; print size, difference and latency."""
    from towerpack.checkpoint.sources import read_npz
    from towerpack.export import ModelExporter

    config = load_config(model, checkpoint, inputs, outputs, ema)
    exporter = ModelExporter(config, probe=read_npz(probe) if probe else None)
    _export(exporter, directory, formats, read_npz(calibration) if calibration else None)


@app.command()
def demo(
    directory: Annotated[Path, typer.Argument(help="Where the demo was trained.")] = Path(
        "train_log/demo"
    ),
    formats: FormatsOption = "all",
) -> None:
    """Export the model that `towerpack demo` trained, to DIRECTORY/export."""
    from towerpack.cli.demo import predict_config
    from towerpack.cli.demo_data import all_test_digits
    from towerpack.export import ModelExporter

    try:
        config = predict_config(directory)
    except FileNotFoundError as error:
        raise typer.BadParameter(f"{error}; run `towerpack demo` first") from error
    images, _ = all_test_digits()
    exporter = ModelExporter(config, probe=[images[:64]])
    _export(exporter, directory / "export", formats, {"image": images[:500]})


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
    exporter: ModelExporter, directory: Path, formats: str, typical: dict[str, Any] | None
) -> None:
    """Exports to all of these formats. A failure is logged, and raised after the last one."""
    from towerpack.core import logger
    from towerpack.export import ExportError
    from towerpack.export.compare import in_batches
    from towerpack.export.exporter import COMMAND_FORMATS

    reports, failures = [], []
    calibration = None if typical is None else list(in_batches(typical, CALIBRATION_BATCH))
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
    for name in set(impossible).intersection(wanted):
        if formats != "all":
            raise typer.BadParameter(f"{name}: {impossible[name]}")
        typer.echo(f"{name} is left out: {impossible[name]}")
        wanted.remove(name)
    return wanted


def _measure(report: ExportReport, exporter: ModelExporter) -> None:
    """Adds the latency for each batch size that the model takes, if it can be run here."""
    import numpy as np

    from towerpack.export import open_export
    from towerpack.export.compare import probe_inputs
    from towerpack.export.exporter import OPENERS
    from towerpack.export.format import write_record

    if report.format.partition(" ")[0] not in OPENERS or report.largest_difference is None:
        return
    inputs = probe_inputs(exporter.graph.specs, exporter.probe)
    export = open_export(report.path)
    for size in BATCHES:
        if all(shape and shape[0] in (None, size) for _, shape in report.inputs.values()):
            batch = {name: np.resize(x, (size, *x.shape[1:])) for name, x in inputs.items()}
            seconds = timeit.repeat(partial(export, batch), repeat=WARM_UP + CALLS, number=1)
            median = statistics.median(seconds[WARM_UP:])
            report.latency_ms[str(size)] = round(median * 1000, 3)
    write_record(report)


def _print_table(reports: Sequence[ExportReport]) -> None:
    """Prints the reports as a table of Markdown."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.MARKDOWN)
    for heading in ("format", "file", "MB", "diff.", *(f"ms at {n}" for n in BATCHES)):
        is_text = heading in ("format", "file")
        table.add_column(heading, no_wrap=True, justify="left" if is_text else "right")
    for report in reports:
        difference, milliseconds = report.largest_difference, report.latency_ms
        table.add_row(
            report.format,
            report.path.name,
            f"{report.bytes / 1e6:.2f}",
            "not run" if difference is None else f"{difference:.1e}",
            *(f"{milliseconds[n]:.3g}" if n in milliseconds else "" for n in map(str, BATCHES)),
        )
    Console().print(table)
    Console().print("diff.: the largest from the tower; ms at n: one call with a batch of n")
