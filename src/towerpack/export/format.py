"""What all formats share: reports and their record, listings, and quiet converters."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._version import __version__
from towerpack.core.files import atomic_file

# A model in some runtime: a function from arrays by key to arrays by key.
Runner = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]

RECORD = "export.json"
CONVERTER_LOGS = ("tensorflow", "tf2onnx", "absl")


@dataclass
class GraphListing:
    """Inputs, outputs and nodes of a file; each as (name, operation or type, shape).

    Inputs and outputs of a SavedModel's signature are (key, tensor, shape).
    """

    inputs: list[tuple[str, str, str]]
    outputs: list[tuple[str, str, str]]
    nodes: list[tuple[str, str, str]]
    select_tf_ops: list[str] = field(default_factory=list)

    def operations(self) -> dict[str, int]:
        """The number of nodes of each operation, the most frequent first."""
        return dict(Counter(kind for _, kind, _ in self.nodes).most_common())


@dataclass
class ExportReport:
    """One export: where it is, its size, and the largest difference found after reloading it."""

    path: Path
    format: str
    bytes: int
    tolerance: float
    largest_difference: float | None  # None: it could not be checked here
    inputs: dict[str, Any]  # key: [dtype, shape]
    outputs: list[str]
    select_tf_ops: list[str] = field(default_factory=list)
    # For a SavedModel: {signature: {"inputs": {key: tensor}, "outputs": {key: tensor}}}
    signatures: dict[str, Any] = field(default_factory=dict)
    latency_ms: dict[str, float] = field(default_factory=dict)  # batch size: milliseconds

    def __str__(self) -> str:
        text = f"{self.format} -> {self.path} ({self.bytes:,} bytes); "
        if self.largest_difference is None:
            text += "NOT CHECKED"
        else:
            text += f"largest difference {self.largest_difference:.3g}, "
            text += f"tolerance {self.tolerance:g}"
        if self.select_tf_ops:
            text += f"; needs the select-TF-ops set for {', '.join(self.select_tf_ops)}"
        return text


def write_record(report: ExportReport) -> None:
    """Writes the report to `export.json` beside the export; reports of other exports stay."""
    directory = report.path.parent
    exports = read_records(directory)
    entry = dataclasses.asdict(report)
    exports[entry.pop("path").name] = entry
    with atomic_file(directory / RECORD, "w") as file:
        json.dump({"towerpack": __version__, "exports": exports}, file, indent=1)
        file.write("\n")


def read_records(directory: Path) -> dict[str, Any]:
    """The entries of a directory's `export.json` by file name; empty if there is no such file."""
    path = directory / RECORD
    if not path.exists():
        return {}
    content = json.loads(path.read_text())
    if not isinstance(content, dict) or not isinstance(content.get("exports"), dict):
        raise ValueError(f"expected a record of exports in {path}, received {str(content)[:80]}")
    exports: dict[str, Any] = content["exports"]
    return exports


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a directory."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within this context, converters log only errors."""
    loggers = [logging.getLogger(name) for name in CONVERTER_LOGS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            # The converter uses it, because no other interpreter has the select-TF-ops library.
            warnings.filterwarnings("ignore", r"\s*Warning: tf\.lite\.Interpreter is deprecated")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
