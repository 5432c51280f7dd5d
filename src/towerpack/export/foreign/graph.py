"""A foreign graph as a part of a tower, with inputs replaced."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.export.foreign.source import ForeignGraph, read_foreign
from towerpack.export.inference_graph import node_of, reachable
from towerpack.export.saved_model import DEFAULT_SIGNATURE
from towerpack.tower import get_op_tensor_name


def load_graph(
    path: str | Path,
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    *,
    trainable: bool | str = False,
    name: str = "graph",
    signature: str = DEFAULT_SIGNATURE,
) -> list[Any]:
    """Builds a foreign graph into the tower being built; gives the tensors of `outputs`.

    `path` is a frozen graph (`.pb`, `.pbtxt`), a `.meta` file with its checkpoint beside it, or a
    SavedModel's directory. `inputs` maps tensors of
    that graph, by name, to tensors of this tower: whatever leads to them there is cut away, so a
    preprocessing, or half of a network, can be replaced. For a SavedModel keys of the signature are
    understood too. `towerpack export show` lists the names. Every tensor `x` of the graph that the
    outputs depend on is a tensor `<name>/x` of this tower: predictors can ask for it.

    Frozen, its weights are constants, part of the graph. With `trainable=True` every floating-point
    constant with at least one dimension, or with a regular expression each of those whose name it
    matches, becomes a trainable variable `<name>/<its name>` of this tower, with the constant as
    its initial value: trained, saved and exported like all others.
    """
    foreign = read_foreign(path, signature, outputs)
    replaced = {_tensor(foreign.inputs, key): tf.convert_to_tensor(x) for key, x in inputs.items()}
    wanted = [_tensor(foreign.outputs, key) for key in outputs]
    _check_names(foreign.graph_def, [*replaced, *wanted], path)
    graph_def = reachable(_cut(foreign.graph_def, set(replaced)), wanted)
    replaced = {tensor: x for tensor, x in replaced.items() if _is_used(graph_def, tensor)}
    _check_complete(graph_def, set(replaced), wanted, path)
    for node in _weights(graph_def, trainable) if trainable else ():
        replaced[f"{node.name}:0"] = _variable(node, foreign, name)

    return _built(graph_def, replaced, wanted, name)


def _built(graph_def: Any, replaced: dict[str, Any], wanted: list[str], name: str) -> list[Any]:
    """The graph as a part of the one being traced, so that all its tensors are found by name."""

    @tf.custom_gradient  # a tape sees calls of operations, not what is imported
    def build(*tensors: Any) -> Any:
        outputs = tf.graph_util.import_graph_def(
            graph_def,
            input_map=dict(zip(replaced, tensors, strict=True)),
            return_elements=wanted,
            name=name,
        )

        def gradients(*upstream: Any) -> list[Any]:
            pairs = zip(outputs, upstream, strict=True)
            floating = [(y, dy) for y, dy in pairs if y.dtype.is_floating]
            return v1.gradients([y for y, _ in floating], tensors, [dy for _, dy in floating])

        return outputs, gradients

    # Outside of a tower there is no graph to be a part of, so it becomes a function.
    run = tf.function(build, autograph=False) if tf.executing_eagerly() else build
    found = run(*replaced.values())
    return list(found) if isinstance(found, list | tuple) else [found]


def _tensor(keys: Mapping[str, str], name: str) -> str:
    return keys[name] if name in keys else get_op_tensor_name(name)[1]


def _cut(graph_def: Any, tensors: set[str]) -> Any:
    """The graph where nodes whose only output is replaced need no inputs any more."""
    cut = v1.GraphDef()
    cut.CopyFrom(graph_def)
    for node in cut.node:
        if f"{node.name}:0" in tensors and _has_no_other_use(graph_def, node.name, tensors):
            del node.input[:]
            node.attr.clear()
            node.op = "Placeholder"
            node.attr["dtype"].type = tf.float32.as_datatype_enum  # nobody will read it
    return cut


def _has_no_other_use(graph_def: Any, name: str, tensors: set[str]) -> bool:
    return all(
        get_op_tensor_name(edge)[1] in tensors
        for node in graph_def.node
        for edge in node.input
        if node_of(edge) == name and not edge.startswith("^")
    )


def _is_used(graph_def: Any, tensor: str) -> bool:
    """Whether anything reads the tensor; TensorFlow refuses to replace one that nobody reads."""
    return any(
        get_op_tensor_name(edge)[1] == tensor for node in graph_def.node for edge in node.input
    )


def _check_names(graph_def: Any, tensors: Sequence[str], path: str | Path) -> None:
    there = {node.name for node in graph_def.node}
    unknown = [tensor for tensor in tensors if node_of(tensor) not in there]
    if unknown:
        raise KeyError(
            f"{path} has no tensors {unknown}; `towerpack export show {path}` lists what it has"
        )


def _check_complete(
    graph_def: Any, replaced: set[str], wanted: Sequence[str], path: str | Path
) -> None:
    missing = [
        node.name
        for node in graph_def.node
        if node.op.startswith("Placeholder") and f"{node.name}:0" not in replaced
    ]
    if missing:
        raise ValueError(
            f"the outputs {list(wanted)} of {path} depend on its inputs {missing}: pass a tensor "
            "for each in inputs="
        )


def _weights(graph_def: Any, trainable: bool | str) -> list[Any]:
    pattern = re.compile(trainable if isinstance(trainable, str) else "")
    found = [
        node
        for node in graph_def.node
        if node.op == "Const"
        and tf.as_dtype(node.attr["dtype"].type).is_floating
        and node.attr["value"].tensor.tensor_shape.dim
        and pattern.search(node.name)
    ]
    if not found:
        raise ValueError(f"expected weights to train, but trainable={trainable!r} matches none")
    return found


def _variable(node: Any, foreign: ForeignGraph, scope: str) -> Any:
    value = tf.make_ndarray(node.attr["value"].tensor)
    own = foreign.variables.get(node.name, node.name)
    variable = v1.get_variable(f"{scope}/{own}", initializer=value)
    return tf.convert_to_tensor(variable)
