"""An export, opened in its own runtime as a function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.export.frozen_graph import open_graph, read_graph
from towerpack.export.litert import open_litert
from towerpack.export.onnx_model import open_onnx
from towerpack.export.record import FILE, read_records
from towerpack.export.runner import Runner
from towerpack.export.saved_model import open_saved_model


@dataclass
class Export:
    """A function from arrays to arrays, both by key; `inputs` has the dtype and shape of each."""

    path: Path
    format: str
    inputs: dict[str, tuple[str, list[int | None]]]
    outputs: list[str]
    run: Runner

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        given = {
            key: np.asarray(inputs[key], tf.as_dtype(dtype).as_numpy_dtype)
            for key, (dtype, _) in self.inputs.items()
        }
        outputs: dict[str, np.ndarray] = self.run(given)
        return outputs


def open_export(path: str | Path) -> Export:
    """Opens what a `ModelExporter` wrote: a file, a SavedModel, or a directory of exports.

    Of a directory with several, the first that can be run is taken. Their inputs and outputs are
    those that `export.json` says.
    """
    path = Path(path)
    records = read_records(path)
    directory = path
    if not records:
        directory = path.parent
        records = {
            name: entry for name, entry in read_records(directory).items() if name == path.name
        }
    for name, entry in records.items():
        if entry["format"] != "weights" and (directory / name).exists():
            inputs = {key: (dtype, shape) for key, (dtype, shape) in entry["inputs"].items()}
            runner = _open(directory / name, entry)
            return Export(directory / name, entry["format"], inputs, entry["outputs"], runner)
    raise FileNotFoundError(
        f"expected an export with its record in {FILE}, received {path}; ModelExporter writes both"
    )


def _open(path: Path, entry: dict[str, Any]) -> Runner:
    kind = entry["format"].partition(" ")[0]
    if kind == "saved_model":
        return open_saved_model(path, next(iter(entry["signatures"])))
    if kind == "litert":
        return open_litert(path)
    if kind == "onnx":
        return open_onnx(path)
    graph_def = read_graph(path)
    there = {node.name for node in graph_def.node}
    inputs = {key: f"{key}:0" for key in entry["inputs"] if key in there}
    return open_graph(graph_def, inputs, {key: f"{key}:0" for key in entry["outputs"]})
