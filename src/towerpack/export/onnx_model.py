"""ONNX: ONNX Runtime in C++, C#, Java, JavaScript and Python, and many accelerators."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core.optional import require
from towerpack.export.frozen_graph import frozen_graph
from towerpack.export.inference_graph import InferenceGraph
from towerpack.export.quiet import quiet
from towerpack.export.runner import Runner

TOLERANCE = 1e-4  # other kernels, other orders of summation
OPSET = 17  # the highest that tf2onnx 1.16 knows, and read by every current runtime


def convert_to_onnx(graph: InferenceGraph, opset: int = OPSET) -> bytes:
    """The content of an `.onnx` file; inputs and outputs have the names of the keys."""
    with quiet():
        tf2onnx = require("tf2onnx", extra="export")
        inputs = {f"{spec.name}:0": spec.name for spec in graph.specs}
        outputs = {f"{key}:0": key for key in graph.output_keys}
        graph_def = frozen_graph(graph)
        there = {f"{node.name}:0" for node in graph_def.node}
        model, _ = tf2onnx.convert.from_graph_def(
            graph_def,
            input_names=[name for name in inputs if name in there],
            output_names=list(outputs),
            opset=opset,
        )
    _rename(model.graph, {**inputs, **outputs})
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def open_onnx(path: Path) -> Runner:
    runtime = require("onnxruntime", extra="export")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    keys = [node.name for node in session.get_inputs()]
    names = [node.name for node in session.get_outputs()]

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = session.run(names, {key: np.asarray(inputs[key]) for key in keys})
        return dict(zip(names, outputs, strict=True))

    return run


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    """Values of the graph by other names: 'image' for TensorFlow's 'image:0'."""
    for value in [*graph.input, *graph.output, *graph.value_info]:
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for edges in (node.input, node.output):
            renamed = [names.get(edge, edge) for edge in edges]
            del edges[:]
            edges.extend(renamed)
