"""`export.json`: what was exported into a directory, how it was checked, what came out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from towerpack._version import __version__
from towerpack.core.files import atomic_file

FILE = "export.json"


@dataclass
class ExportReport:
    """One export: where it is, its size, and the largest difference found after reloading it."""

    path: Path
    format: str
    bytes: int
    tolerance: float
    largest_difference: float | None  # None: it could not be run here
    inputs: dict[str, Any]  # key: [dtype, shape]
    outputs: list[str]
    select_tf_ops: list[str] = field(default_factory=list)
    # Of a SavedModel: {signature: {"inputs": {key: tensor}, "outputs": {key: tensor}}}
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
    """Puts the report into `export.json` beside the export; those of other exports stay."""
    directory = report.path.parent
    exports = read_records(directory)
    entry = dataclasses.asdict(report)
    exports[entry.pop("path").name] = entry
    with atomic_file(directory / FILE, "w") as file:
        json.dump({"towerpack": __version__, "exports": exports}, file, indent=1)
        file.write("\n")


def read_records(directory: Path) -> dict[str, Any]:
    """The entries of a directory's `export.json` by file name; none if there is none."""
    path = directory / FILE
    if not path.exists():
        return {}
    content = json.loads(path.read_text())
    if not isinstance(content, dict) or not isinstance(content.get("exports"), dict):
        raise ValueError(f"expected a record of exports in {path}, received {str(content)[:80]}")
    exports: dict[str, Any] = content["exports"]
    return exports


def describe_specs(specs: Sequence[Any]) -> dict[str, Any]:
    return {spec.name: [spec.dtype.name, spec.shape.as_list()] for spec in specs}


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a directory."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
