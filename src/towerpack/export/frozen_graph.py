"""Frozen graphs: one `.pb` or `.pbtxt` file, variables as constants, pruned and folded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format

from towerpack._tensorflow import tf, v1
from towerpack.core.optional import require
from towerpack.export.compare import ExportError, Runner
from towerpack.export.inference_graph import InferenceGraph, reachable
from towerpack.tower.traced import prune

TOLERANCE = 1e-5
TEXT_SUFFIX = ".pbtxt"
LARGEST_GROWTH = 1 << 20  # bytes: a `tf.zeros` of a gigabyte stays the operation that it is


def frozen_graph(graph: InferenceGraph, optimize: bool = True) -> Any:
    """The `GraphDef`; its inputs and outputs are the nodes named by the keys."""
    graph_def = freeze(graph.concrete)
    outputs = []
    for key, name in zip(graph.output_keys, graph.output_names, strict=True):
        outputs.append(f"{key}:0")
        if name != f"{key}:0":
            _add_identity(graph_def, key, name, graph)
    return fold_constants(graph_def, outputs) if optimize else reachable(graph_def, outputs)


def freeze(concrete: Any) -> Any:
    """The GraphDef of a concrete function with its variables as constants.

    This is the only use of TensorFlow's private module for it, which its own guides recommend.
    """
    convert = require("tensorflow.python.framework.convert_to_constants", extra="tf")
    for key in concrete.graph.get_all_collection_keys():
        concrete.graph.clear_collection(key)  # TensorFlow would only warn about variables in them
    try:
        # Lowered to TensorFlow 1's Switch and Merge, loops give wrong results and converters cannot
        # read them; as functions they are what TensorFlow 2 itself runs.
        frozen = convert.convert_variables_to_constants_v2(concrete, lower_control_flow=False)
    except tf.errors.OpError as error:
        raise ExportError(
            f"TensorFlow cannot freeze this graph; nothing was written: {error.message}"
        ) from error
    return frozen.graph.as_graph_def()


def _add_identity(graph_def: Any, key: str, name: str, graph: InferenceGraph) -> None:
    if any(node.name == key for node in graph_def.node):
        raise ValueError(
            f"expected output keys that are not names of other operations, received {key!r} for "
            f"the tensor {name!r}; choose another"
        )
    tensor = graph.concrete.graph.get_tensor_by_name(name)
    node = graph_def.node.add(name=key, op="Identity", input=[name.removesuffix(":0")])
    node.attr["T"].type = tensor.dtype.as_datatype_enum


def fold_constants(graph_def: Any, output_names: list[str]) -> Any:
    """Computes operations that depend only on constants, and prunes the graph to the outputs.

    Operations with state (random numbers, for example) or control inputs stay. TensorFlow also
    folds constants when it loads a graph, but other readers of a `.pb` file do not, and they may
    lack the operations that are folded away.
    """
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
        operations = graph.get_operations()
    candidates: dict[str, Any] = {}
    for operation in operations:  # in the order of a GraphDef, which need not be topological
        _collect(operation, candidates)
    folded = _accepted(_evaluate(graph_def, candidates), candidates)
    renamed: dict[str, str] = {}
    made = []
    for name, values in folded.items():
        for number, value in enumerate(values):
            new = name if number == 0 else f"{name}/folded_{number}"
            renamed[f"{name}:{number}"] = new
            made.append(_constant(new, value))
    result = v1.GraphDef(library=graph_def.library, versions=graph_def.versions)
    for node in graph_def.node:
        if node.name not in folded:
            kept = result.node.add()
            kept.CopyFrom(node)
            inputs = [renamed.get(edge, edge) for edge in node.input]
            del kept.input[:]
            kept.input.extend(inputs)
    result.node.extend(made)
    result = reachable(result, output_names)
    if not _uses_functions(result):
        result.ClearField("library")
    return result


def _collect(operation: Any, candidates: dict[str, Any]) -> bool:
    """Whether the operation's value is known; adds it to the candidates if it can be folded."""
    if operation.name in candidates:
        return True
    if operation.op_def.is_stateful or operation.control_inputs:
        return False
    if operation.type == "Const" or not operation.inputs:
        return bool(operation.type == "Const")
    if any(tensor.dtype in (tf.resource, tf.variant) for tensor in operation.outputs):
        return False
    if not all(_collect(tensor.op, candidates) for tensor in operation.inputs):
        return False
    candidates[operation.name] = operation
    return True


def _evaluate(graph_def: Any, candidates: dict[str, Any]) -> dict[str, list[np.ndarray]]:
    names = [t.name for operation in candidates.values() for t in operation.outputs]
    if not names:
        return {}
    wrapped = v1.wrap_function(lambda: tf.graph_util.import_graph_def(graph_def, name=""), [])
    values = wrapped.prune([], [wrapped.graph.as_graph_element(name) for name in names])()
    found: dict[str, list[np.ndarray]] = {name: [] for name in candidates}
    for name, value in zip(names, values, strict=True):
        found[name.partition(":")[0]].append(value.numpy())
    return found


def _accepted(
    values: dict[str, list[np.ndarray]], candidates: dict[str, Any]
) -> dict[str, list[np.ndarray]]:
    """Those that are not much larger than what they were computed from."""

    def growth(name: str) -> int:
        inputs = candidates[name].inputs
        before = sum(x.dtype.size * (x.shape.num_elements() or 0) for x in inputs)
        return sum(array.nbytes for array in values[name]) - before

    return {name: arrays for name, arrays in values.items() if growth(name) <= LARGEST_GROWTH}


def _constant(name: str, value: np.ndarray) -> Any:
    tensor = tf.make_tensor_proto(value)
    node = v1.NodeDef(name=name, op="Const")
    node.attr["dtype"].type = tensor.dtype
    node.attr["value"].tensor.CopyFrom(tensor)
    return node


def _uses_functions(graph_def: Any) -> bool:
    functions = {function.signature.name for function in graph_def.library.function}
    for node in graph_def.node:
        if node.op in functions:
            return True
        if any(value.HasField("func") or value.list.func for value in node.attr.values()):
            return True
    return False


def serialized(graph_def: Any, path: Path) -> bytes:
    """The content of the file: text for `.pbtxt`, otherwise binary."""
    if path.suffix == TEXT_SUFFIX:
        return text_format.MessageToString(graph_def).encode()
    content: bytes = graph_def.SerializeToString(deterministic=True)
    return content


def read_graph(path: Path) -> Any:
    """The `GraphDef` in a file: `.pbtxt` holds text, any other is binary."""
    data = path.read_bytes()
    graph_def = v1.GraphDef()
    try:
        if path.suffix == TEXT_SUFFIX:
            text_format.Parse(data, graph_def)
        else:
            graph_def.ParseFromString(data)
    except Exception as error:  # protobuf's own
        raise ValueError(f"expected a GraphDef in {path}: {error}") from error
    if not graph_def.node:
        raise ValueError(f"expected a GraphDef in {path}, received one without nodes")
    return graph_def


def open_graph(graph_def: Any, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Runner:
    """A function over a graph; the mappings are from keys to names of tensors."""
    wrapped = v1.wrap_function(lambda: tf.graph_util.import_graph_def(graph_def, name=""), [])
    feeds = [wrapped.graph.as_graph_element(name) for name in inputs.values()]
    fetches = [wrapped.graph.as_graph_element(name) for name in outputs.values()]
    pruned = prune(wrapped, feeds, fetches)

    def run(given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        tensors = [
            tf.convert_to_tensor(given[key], feed.dtype)
            for key, feed in zip(inputs, feeds, strict=True)
        ]
        return {key: x.numpy() for key, x in zip(outputs, pruned(*tensors), strict=True)}

    return run


def open_frozen(path: Path, input_keys: Iterable[str], output_keys: Iterable[str]) -> Runner:
    """Opens a file of `export_compact`, which lacks the inputs that its outputs do not need."""
    graph_def = read_graph(path)
    there = {node.name for node in graph_def.node}
    inputs = {key: f"{key}:0" for key in input_keys if key in there}
    return open_graph(graph_def, inputs, {key: f"{key}:0" for key in output_keys})
