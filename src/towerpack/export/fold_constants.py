"""Constant folding: what depends on nothing but constants is computed once, now.

TensorFlow folds as well when it loads a graph, but other readers of a `.pb` file do not, and they
may lack the operations that are folded away.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from towerpack._tensorflow import tf, v1
from towerpack.export.inference_graph import reachable

LARGEST_GROWTH = 1 << 20  # bytes: a `tf.zeros` of a gigabyte stays the operation that it is


def fold_constants(graph_def: Any, output_names: list[str]) -> Any:
    """The same graph without operations whose value is known, pruned to the outputs.

    Operations with state (random numbers, say) or control inputs stay.
    """
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
        operations = graph.get_operations()
    candidates: dict[str, Any] = {}
    for operation in operations:  # in the order of a GraphDef, which need not be topological
        _collect(operation, candidates)
    folded = _accepted(_evaluate(graph_def, candidates), candidates)
    names = {name: f"{name}:0" for name in folded}
    renamed: dict[str, str] = {}
    made = []
    for name in names:
        for number, value in enumerate(folded[name]):
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
    """Whether the operation's value is known; it is noted if it can be folded."""
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
    """Those that do not make the file much larger than what they were computed from."""

    def size(arrays: Iterable[np.ndarray]) -> int:
        return sum(array.nbytes for array in arrays)

    accepted = {}
    for name, arrays in values.items():
        sources = sum(
            tensor.dtype.size * (tensor.shape.num_elements() or 0)
            for tensor in candidates[name].inputs
        )
        if size(arrays) <= sources + LARGEST_GROWTH:
            accepted[name] = arrays
    return accepted


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
