"""What is in an exported or foreign file, as lines for people."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from towerpack._tensorflow import tf
from towerpack.core.optional import require
from towerpack.export.foreign.source import read_foreign
from towerpack.export.litert import select_tf_ops
from towerpack.export.saved_model import DEFAULT_SIGNATURE


@dataclass
class GraphListing:
    """Inputs, outputs and nodes of a file; each as (name, operation or type, shape).

    Of a SavedModel's signature, inputs and outputs are (key, tensor, shape).
    """

    inputs: list[tuple[str, str, str]]
    outputs: list[tuple[str, str, str]]
    nodes: list[tuple[str, str, str]]
    select_tf_ops: list[str]

    def operations(self) -> dict[str, int]:
        """How often each operation is there, the most frequent first."""
        return dict(Counter(kind for _, kind, _ in self.nodes).most_common())


def list_graph(path: str | Path, signature: str = DEFAULT_SIGNATURE) -> GraphListing:
    """Lists a `.pb`, `.pbtxt`, `.meta`, `.onnx` or `.tflite` file, or a SavedModel's signature."""
    path = Path(path)
    if path.suffix == ".onnx":
        return _list_onnx(path)
    if path.suffix == ".tflite":
        return _list_litert(path)
    foreign = read_foreign(path, signature)
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(foreign.graph_def, name="")
    operations = graph.get_operations()
    read = {tensor.op.name for operation in operations for tensor in operation.inputs}
    nodes = [(op.name, op.type, ", ".join(map(_shape, op.outputs))) for op in operations]
    inputs = [row for row in nodes if row[1].startswith("Placeholder")]
    outputs = [row for row in nodes if row[0] not in read and row[1] not in ("Const", "NoOp")]
    if foreign.outputs:  # a signature says what they are, and by which keys
        inputs, outputs = (
            [(key, name, _shape(graph.get_tensor_by_name(name))) for key, name in keys.items()]
            for keys in (foreign.inputs, foreign.outputs)
        )
    return GraphListing(inputs, outputs, nodes, select_tf_ops=[])


def _shape(tensor: Any) -> str:
    shape = tensor.shape
    dims = "?" if shape.rank is None else "x".join("?" if d is None else str(d) for d in shape)
    return f"{tensor.dtype.name} [{dims}]"


def _list_onnx(path: Path) -> GraphListing:
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
    return GraphListing(rows(graph.input), rows(graph.output), nodes, [])


def _list_litert(path: Path) -> GraphListing:
    module = require("ai_edge_litert.interpreter", extra="export")
    content = path.read_bytes()
    try:
        interpreter = module.Interpreter(
            model_content=content,
            # Otherwise most of the nodes would be listed as one.
            experimental_op_resolver_type=module.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        )
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"expected a LiteRT model in {path}: {error}") from error
    tensors = {detail["index"]: detail for detail in interpreter.get_tensor_details()}

    def row(detail: Any) -> tuple[str, str, str]:
        dims = ["?" if d < 0 else str(d) for d in detail["shape_signature"]]
        return detail["name"], detail["dtype"].__name__, f"[{'x'.join(dims)}]"

    nodes = []
    for operation in interpreter._get_ops_details():
        outputs = [tensors[i]["name"] for i in operation["outputs"] if i in tensors]
        nodes.append((outputs[0] if outputs else "", operation["op_name"], ""))
    return GraphListing(
        [row(detail) for detail in interpreter.get_input_details()],
        [row(detail) for detail in interpreter.get_output_details()],
        nodes,
        select_tf_ops(content),
    )
