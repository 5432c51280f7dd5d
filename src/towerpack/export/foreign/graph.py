"""Foreign graphs: read from a file as a `GraphDef`, and built into a tower with inputs replaced."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.checkpoint import get_checkpoint_path
from towerpack.export.format import quiet
from towerpack.export.frozen_graph import freeze, read_graph
from towerpack.export.inference_graph import node_of, reachable
from towerpack.export.saved_model import DEFAULT_SIGNATURE
from towerpack.tower import get_op_tensor_name

META_SUFFIX = ".meta"
SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")


def load_graph(
    path: str | Path,
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    *,
    trainable: bool | str = False,
    name: str = "graph",
    signature: str = DEFAULT_SIGNATURE,
) -> list[Any]:
    """Builds a foreign graph into the current tower and returns the tensors of `outputs`.

    `path` is a frozen graph (`.pb`, `.pbtxt`), a `.meta` file with its checkpoint beside it, or a
    SavedModel's directory. `inputs` maps tensors of that graph, by name, to tensors of this tower.
    The operations that compute these tensors in the foreign graph are removed, so that its
    preprocessing, or half of a network, can be replaced. For a SavedModel, keys of the signature
    work as names. `towerpack export show` lists the names. Every tensor `x` of the graph that the
    outputs depend on is a tensor `<name>/x` of this tower, which predictors can fetch.

    By default the weights are constants of the graph. With `trainable=True` every floating-point
    constant with at least one dimension becomes a trainable variable `<name>/<its name>` of this
    tower, with the constant as its initial value; it is trained, saved and exported like all
    others. With a regular expression, only the constants whose names it matches do.
    """
    foreign = read_foreign(path, signature, outputs)
    replaced = {_tensor(foreign.inputs, key): tf.convert_to_tensor(x) for key, x in inputs.items()}
    wanted = [_tensor(foreign.outputs, key) for key in outputs]
    _check_names(foreign.graph_def, [*replaced, *wanted], path)
    graph_def = reachable(foreign.graph_def, wanted, replaced)
    # TensorFlow refuses to replace a tensor that no node reads.
    read = {get_op_tensor_name(edge)[1] for node in graph_def.node for edge in node.input}
    replaced = {tensor: x for tensor, x in replaced.items() if tensor in read}
    _check_complete(graph_def, replaced, wanted, path)
    for node in _weights(graph_def, trainable) if trainable else ():
        replaced[f"{node.name}:0"] = _variable(node, foreign, name)

    return _built(graph_def, replaced, wanted, name)


def _built(graph_def: Any, replaced: dict[str, Any], wanted: list[str], name: str) -> list[Any]:
    """Imports the graph into the one being traced, so that all its tensors are found by name."""

    @tf.custom_gradient  # a tape records calls of operations, but not imported ones
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

    # Outside of a tower there is no graph to import into, so it becomes a function.
    run = tf.function(build, autograph=False) if tf.executing_eagerly() else build
    found = run(*replaced.values())
    return list(found) if isinstance(found, list | tuple) else [found]


def _tensor(keys: Mapping[str, str], name: str) -> str:
    return keys[name] if name in keys else get_op_tensor_name(name)[1]


def _check_names(graph_def: Any, tensors: Sequence[str], path: str | Path) -> None:
    there = {node.name for node in graph_def.node}
    unknown = [tensor for tensor in tensors if node_of(tensor) not in there]
    if unknown:
        raise KeyError(
            f"{path} has no tensors {unknown}; `towerpack export show {path}` lists what it has"
        )


def _check_complete(
    graph_def: Any, replaced: Collection[str], wanted: Sequence[str], path: str | Path
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


@dataclass
class ForeignGraph:
    """A graph with constants in place of its variables."""

    graph_def: Any
    variables: dict[str, str] = field(default_factory=dict)  # node of the constant to name
    inputs: dict[str, str] = field(default_factory=dict)  # of a signature: key to tensor
    outputs: dict[str, str] = field(default_factory=dict)


def read_foreign(
    path: str | Path, signature: str = DEFAULT_SIGNATURE, outputs: Sequence[str] = ()
) -> ForeignGraph:
    """Reads a `.pb`, `.pbtxt` or `.meta` file, or one signature of a SavedModel's directory.

    A `.meta` file holds no weights. With `outputs`, they come from the checkpoint beside it;
    without, the graph keeps its variables.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no graph {path}")
    if path.suffix == META_SUFFIX:
        return _in_a_thread(_frozen_meta, path, outputs) if outputs else ForeignGraph(_graph(path))
    if not path.is_dir():
        return ForeignGraph(read_graph(path))
    if not any((path / name).exists() for name in SAVED_MODEL_FILES):
        raise ValueError(f"expected a .pb, .pbtxt or .meta file or a SavedModel, received {path}")
    return _in_a_thread(_frozen_signature, path, signature)


def _in_a_thread(read: Callable[..., ForeignGraph], *arguments: Any) -> ForeignGraph:
    # In another thread no tower is being built, so that foreign variables do not become variables
    # of this tower, and their values can be read.
    with ThreadPoolExecutor(1, "reading a foreign graph") as thread:
        return thread.submit(read, *arguments).result()


def _graph(path: Path) -> Any:
    try:
        graph_def = v1.MetaGraphDef.FromString(path.read_bytes()).graph_def
    except Exception as error:  # protobuf's own
        raise ValueError(f"expected a MetaGraph in {path}: {error}") from error
    if not graph_def.node:
        raise ValueError(f"expected a MetaGraph in {path}, received one without nodes")
    return graph_def


def _frozen_meta(path: Path, outputs: Sequence[str]) -> ForeignGraph:
    prefix = get_checkpoint_path(path)
    _graph(path)  # for a damaged file, raises an error that names it
    with tf.Graph().as_default() as graph, v1.Session() as session, quiet():
        saver = v1.train.import_meta_graph(str(path), clear_devices=True)
        if saver is None:
            raise ValueError(f"{path} has no variables: save its graph as a .pb file")
        saver.restore(session, prefix)
        nodes = [get_op_tensor_name(name)[0] for name in outputs]
        there = {node.name for node in graph.as_graph_def().node}
        known = [node for node in nodes if node in there]  # the caller reports others by name
        frozen = v1.graph_util.convert_variables_to_constants(
            session, graph.as_graph_def(), known or list(there)[:1]
        )
    return ForeignGraph(frozen)


def _frozen_signature(path: Path, signature: str) -> ForeignGraph:
    try:
        loaded = tf.saved_model.load(str(path))
    except (tf.errors.OpError, ValueError, RuntimeError, KeyError) as error:
        raise ValueError(
            f"expected a SavedModel that TensorFlow can load in {path}: {error}"
        ) from error
    known = sorted(loaded.signatures)
    if signature == DEFAULT_SIGNATURE and signature not in known and len(known) == 1:
        (signature,) = known
    if signature not in known:
        raise KeyError(f"{path} has no signature {signature!r}; it has {known}")
    function = loaded.signatures[signature]
    names = {id(variable.handle): variable.name for variable in function.graph.variables}
    variables = {
        internal.op.name: names[id(external)].removesuffix(":0")
        for external, internal in function.graph.captures
        if id(external) in names
    }
    # TensorFlow flattens a dict in the order of its keys; variables come after the inputs.
    _, specs = function.structured_input_signature
    inputs = {key: tensor.name for key, tensor in zip(sorted(specs), function.inputs, strict=False)}
    keys_in_order = sorted(function.structured_outputs)
    outputs = {
        key: tensor.name for key, tensor in zip(keys_in_order, function.outputs, strict=True)
    }
    return ForeignGraph(freeze(function), variables, inputs, outputs)
