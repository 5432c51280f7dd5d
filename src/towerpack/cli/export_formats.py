"""All formats of a model in one go, and the table of what came out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from towerpack.core import logger
from towerpack.export import ExportError, ExportReport, ModelExporter
from towerpack.export.compare import probe_inputs
from towerpack.export.latency import batch_of, latency_ms
from towerpack.export.open_export import open_export
from towerpack.export.record import write_record

BATCHES = (1, 64)

FORMATS: dict[str, Callable[[ModelExporter, Path, Any], ExportReport]] = {
    "saved_model": lambda e, d, _: e.export_serving(d / "saved_model"),
    "frozen": lambda e, d, _: e.export_compact(d / "model.pb"),
    "text": lambda e, d, _: e.export_compact(d / "model.pbtxt"),
    "onnx": lambda e, d, _: e.export_onnx(d / "model.onnx"),
    "litert": lambda e, d, _: e.export_litert(d / "model.tflite"),
    "litert_float16": lambda e, d, _: e.export_litert(
        d / "model_float16.tflite", precision="float16"
    ),
    "litert_batch1": lambda e, d, _: e.export_litert(d / "model_batch1.tflite", batch_size=1),
    "litert_int8": lambda e, d, calibration: e.export_litert(
        d / "model_int8.tflite", precision="int8", calibration=calibration
    ),
    "npz": lambda e, d, _: e.export_weights(d / "weights.npz"),
    "safetensors": lambda e, d, _: e.export_weights(d / "weights.safetensors"),
}


def export_formats(
    exporter: ModelExporter, directory: Path, formats: Sequence[str], calibration: Any
) -> list[ExportReport]:
    """Exports to these formats; one that fails is said, and the others are still tried.

    Raises `ExportError` at the end if any failed.
    """
    reports, failures = [], []
    for name in formats:
        try:
            report = FORMATS[name](exporter, directory, calibration)
        except (ExportError, ValueError, ImportError) as error:
            logger.error("%s: %s", name, error)
            failures.append(name)
            continue
        _measure(report, exporter)
        reports.append(report)
    print_table(reports)
    if failures:
        raise ExportError(f"these formats were not exported: {', '.join(failures)}; see above")
    return reports


def _measure(report: ExportReport, exporter: ModelExporter) -> None:
    """Adds the time of a call for each batch size that it takes, where there is a runtime."""
    if report.format == "weights" or report.largest_difference is None:
        return
    inputs = probe_inputs(exporter.graph.specs, exporter.probe)
    export = open_export(report.path)
    for size in BATCHES:
        if all(shape and shape[0] in (None, size) for _, shape in report.inputs.values()):
            report.latency_ms[str(size)] = round(latency_ms(export, batch_of(inputs, size)), 3)
    write_record(report)


def print_table(reports: Sequence[ExportReport]) -> None:
    """What came out, as a table of Markdown."""
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


def _milliseconds(time: float | None) -> str:
    return "" if time is None else f"{time:.3g}"
