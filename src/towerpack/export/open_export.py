"""Exports and foreign files: opened in their runtime as a function, or listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.export.exporter import LISTERS, OPENERS
from towerpack.export.foreign.graph import read_foreign
from towerpack.export.format import RECORD, GraphListing, Runner, read_records
from towerpack.export.saved_model import DEFAULT_SIGNATURE


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

    Of a directory with several exports, the first that can be run is opened. Inputs and outputs are
    those in `export.json`.
    """
    path = Path(path)
    directory, records = path, read_records(path)
    if not records:
        directory, entry = path.parent, read_records(path.parent).get(path.name)
        records = {path.name: entry} if entry else {}
    for name, entry in records.items():
        opener = OPENERS.get(entry["format"].partition(" ")[0])
        if opener is not None and (directory / name).exists():
            inputs = {key: (dtype, shape) for key, (dtype, shape) in entry["inputs"].items()}
            runner = opener(directory / name, entry)
            return Export(directory / name, entry["format"], inputs, entry["outputs"], runner)
    raise FileNotFoundError(
        f"expected an export with its record in {RECORD}, received {path}; ModelExporter writes "
        "both"
    )


def list_graph(path: str | Path, signature: str = DEFAULT_SIGNATURE) -> GraphListing:
    """Lists a `.pb`, `.pbtxt`, `.meta`, `.onnx` or `.tflite` file, or a SavedModel's signature."""
    path = Path(path)
    if path.suffix in LISTERS:
        return LISTERS[path.suffix](path)
    foreign = read_foreign(path, signature)
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(foreign.graph_def, name="")
    operations = graph.get_operations()
    read = {tensor.op.name for operation in operations for tensor in operation.inputs}
    nodes = [(op.name, op.type, ", ".join(map(_shape, op.outputs))) for op in operations]
    inputs = [row for row in nodes if row[1].startswith("Placeholder")]
    outputs = [row for row in nodes if row[0] not in read and row[1] not in ("Const", "NoOp")]
    if foreign.outputs:  # a signature defines them, with their keys
        inputs, outputs = (
            [(key, name, _shape(graph.get_tensor_by_name(name))) for key, name in keys.items()]
            for keys in (foreign.inputs, foreign.outputs)
        )
    return GraphListing(inputs, outputs, nodes)


def _shape(tensor: Any) -> str:
    shape = tensor.shape
    dims = "?" if shape.rank is None else "x".join("?" if d is None else str(d) for d in shape)
    return f"{tensor.dtype.name} [{dims}]"
