"""A foreign graph as a `GraphDef`, from whatever file holds it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from towerpack._tensorflow import tf
from towerpack.export.frozen_graph import freeze, read_graph
from towerpack.export.saved_model import DEFAULT_SIGNATURE

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


def read_foreign(path: str | Path, signature: str = DEFAULT_SIGNATURE) -> ForeignGraph:
    """Reads a `.pb` or `.pbtxt` file, or one signature of a SavedModel's directory."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no graph {path}")
    if not path.is_dir():
        return ForeignGraph(read_graph(path))
    if not is_saved_model(path):
        raise ValueError(f"expected a .pb or .pbtxt file or a SavedModel, received {path}")
    return _from_saved_model(path, signature)


def _from_saved_model(path: Path, signature: str) -> ForeignGraph:
    # In a thread of its own, where no tower is being built: its variables must not become this
    # tower's, and their values must be real ones.
    with ThreadPoolExecutor(1, "reading a SavedModel") as thread:
        return thread.submit(_frozen_signature, path, signature).result()


def _frozen_signature(path: Path, signature: str) -> ForeignGraph:
    loaded = tf.saved_model.load(str(path))
    if signature not in loaded.signatures:
        raise KeyError(f"{path} has no signature {signature!r}; it has {sorted(loaded.signatures)}")
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
