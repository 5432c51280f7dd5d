"""Frozen graphs: one `.pb` or `.pbtxt` file, variables as constants, pruned and folded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format

from towerpack._tensorflow import tf, v1
from towerpack.core.optional import require
from towerpack.export.compare import ExportError
from towerpack.export.format import Runner
from towerpack.export.inference_graph import InferenceGraph, reachable
from towerpack.tower.traced import prune

TOLERANCE = 1e-5
TEXT_SUFFIX = ".pbtxt"


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
        concrete.graph.clear_collection(key)  # otherwise TensorFlow warns about variables in them
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

    Operations with state (random numbers, for example) stay. TensorFlow also folds constants when
    it loads a graph, but other readers of a `.pb` file do not, and they may lack the operations
    that are folded away. TensorFlow's optimizer has no public interface; this is its only use.
    """
    optimizer = require("tensorflow.python.grappler.tf_optimizer", extra="tf")
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
        meta_graph = v1.train.export_meta_graph(graph=graph)
    meta_graph.collection_def["train_op"].node_list.value.extend(output_names)  # what to compute
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.optimizers.append("constfold")
    config.graph_options.rewrite_options.min_graph_nodes = -1  # small graphs are optimized too
    return reachable(optimizer.OptimizeGraph(config, meta_graph), output_names)


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
