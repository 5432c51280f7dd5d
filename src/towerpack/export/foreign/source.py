"""A foreign graph as a `GraphDef`, from whatever file holds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from towerpack._tensorflow import tf, v1
from towerpack.checkpoint import get_checkpoint_path
from towerpack.export.frozen_graph import freeze, read_graph
from towerpack.export.quiet import quiet
from towerpack.export.saved_model import DEFAULT_SIGNATURE
from towerpack.tower import get_op_tensor_name

META_SUFFIX = ".meta"
SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")


@dataclass
class ForeignGraph:
    """A graph with constants for variables; names of those that were variables, by node."""

    graph_def: Any
    variables: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)  # of a signature: key to tensor
    outputs: dict[str, str] = field(default_factory=dict)


def is_saved_model(path: Path) -> bool:
    return any((path / name).exists() for name in SAVED_MODEL_FILES)


def read_foreign(
    path: str | Path, signature: str = DEFAULT_SIGNATURE, outputs: Sequence[str] = ()
) -> ForeignGraph:
    """Reads a `.pb`, `.pbtxt` or `.meta` file, or one signature of a SavedModel's directory.

    A `.meta` file holds no weights: for `outputs` they come from the checkpoint beside it; without
    outputs its graph is as it stands, with its variables.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no graph {path}")
    if path.suffix == META_SUFFIX:
        return _in_a_thread(_frozen_meta, path, outputs) if outputs else ForeignGraph(_graph(path))
    if not path.is_dir():
        return ForeignGraph(read_graph(path))
    if not is_saved_model(path):
        raise ValueError(f"expected a .pb, .pbtxt or .meta file or a SavedModel, received {path}")
    return _in_a_thread(_frozen_signature, path, signature)


def _in_a_thread(read: Callable[..., ForeignGraph], *arguments: Any) -> ForeignGraph:
    # No tower is being built there: foreign variables must not become this tower's, and their
    # values must be real ones.
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
    _graph(path)  # a damaged file is refused in our words
    with tf.Graph().as_default() as graph, v1.Session() as session, quiet():
        saver = v1.train.import_meta_graph(str(path), clear_devices=True)
        if saver is None:
            raise ValueError(f"{path} has no variables: save its graph as a .pb file")
        saver.restore(session, prefix)
        nodes = [get_op_tensor_name(name)[0] for name in outputs]
        there = {node.name for node in graph.as_graph_def().node}
        known = [node for node in nodes if node in there]  # others are reported by name later
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
    # TensorFlow flattens a dict in the order of its keys; variables come behind the inputs.
    _, specs = function.structured_input_signature
    inputs = {key: tensor.name for key, tensor in zip(sorted(specs), function.inputs, strict=False)}
    keys_in_order = sorted(function.structured_outputs)
    outputs = {
        key: tensor.name for key, tensor in zip(keys_in_order, function.outputs, strict=True)
    }
    return ForeignGraph(freeze(function), variables, inputs, outputs)
