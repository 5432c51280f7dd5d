"""ONNX: ONNX Runtime in C++, C#, Java, JavaScript and Python, and many accelerators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core.optional import require
from towerpack.export.compare import ExportError
from towerpack.export.format import GraphListing, Runner, quiet
from towerpack.export.frozen_graph import frozen_graph
from towerpack.export.inference_graph import InferenceGraph

TOLERANCE = 1e-4  # other kernels add in another order
OPSET = 17  # the highest that tf2onnx 1.16 supports; every current runtime reads it


def convert_to_onnx(graph: InferenceGraph, opset: int = OPSET) -> bytes:
    """The content of an `.onnx` file; inputs and outputs have the names of the keys."""
    with quiet():
        tf2onnx = require("tf2onnx", extra="export")
        inputs = {f"{spec.name}:0": spec.name for spec in graph.specs}
        outputs = {f"{key}:0": key for key in graph.output_keys}
        graph_def = frozen_graph(graph)
        there = {f"{node.name}:0" for node in graph_def.node}
        try:
            model, _ = tf2onnx.convert.from_graph_def(
                graph_def,
                input_names=[name for name in inputs if name in there],
                output_names=list(outputs),
                opset=opset,
                tensors_to_rename={**inputs, **outputs},  # 'image' for TensorFlow's 'image:0'
            )
        except Exception as error:  # tf2onnx raises whatever its handlers run into
            raise ExportError(f"tf2onnx cannot convert this graph: {error}") from error
    _check_operations(model.graph)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _check_operations(graph: Any) -> None:
    """Refuses TensorFlow operations, which tf2onnx leaves in the graph where it has no handler."""
    onnx = require("onnx", extra="export")
    nodes = list(_nodes(graph))
    unknown = sorted({n.op_type for n in nodes if not onnx.defs.has(n.op_type, n.domain)})
    if unknown:
        raise ExportError(
            f"expected operations that tf2onnx can convert, received {unknown}; nothing was "
            "written. Leave them out of the inference graph, or export a SavedModel"
        )
    for node in nodes:
        if node.op_type == "Loop":  # ONNX Runtime requires a shape here; both are scalars
            (body,) = _graphs(node)
            for value in body.input[:2]:
                value.type.tensor_type.shape.SetInParent()


def _nodes(graph: Any) -> Iterator[Any]:
    """The nodes of a graph, and of the bodies of its loops and branches."""
    for node in graph.node:
        yield node
        for body in _graphs(node):
            yield from _nodes(body)


def _graphs(node: Any) -> list[Any]:
    return [attribute.g for attribute in node.attribute if attribute.HasField("g")]


def open_onnx(path: Path) -> Runner:
    runtime = require("onnxruntime", extra="export")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    keys = [node.name for node in session.get_inputs()]
    names = [node.name for node in session.get_outputs()]

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = session.run(names, {key: np.asarray(inputs[key]) for key in keys})
        return dict(zip(names, outputs, strict=True))

    return run


def list_onnx(path: Path) -> GraphListing:
    """Lists an `.onnx` file."""
    onnx = require("onnx", extra="export")
    try:
        graph = onnx.load(path).graph
    except Exception as error:  # protobuf's own
        raise ValueError(f"expected an ONNX model in {path}: {error}") from error
    if not graph.node:
        raise ValueError(f"expected an ONNX model in {path}, received one without nodes")

    def rows(values: Any) -> list[tuple[str, str, str]]:
        found = []
        for value in values:
            kind = value.type.tensor_type
            dims = [str(d.dim_value or "?") for d in kind.shape.dim]
            dtype = onnx.TensorProto.DataType.Name(kind.elem_type).lower()
            found.append((value.name, dtype, f"[{'x'.join(dims)}]"))
        return found

    nodes = [(node.name, node.op_type, ", ".join(node.output)) for node in graph.node]
    return GraphListing(rows(graph.input), rows(graph.output), nodes)
