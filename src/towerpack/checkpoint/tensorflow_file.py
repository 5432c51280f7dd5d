"""Variables in TensorFlow's checkpoints: towerpack's, tensorpack's, `tf.train.Checkpoint`'s."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from towerpack.checkpoint.manifest import CorruptCheckpoint, check_files
from towerpack.checkpoint.sources import Entry
from towerpack.core.optional import Lazy

tf: Any = Lazy("towerpack._tensorflow", "tf", extra="tf")  # not needed to list checkpoints

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def _read_errors() -> tuple[type[Exception], ...]:
    """The errors of TensorFlow's reader for damaged files; IndexError if one is truncated."""
    return tf.errors.OpError, ValueError, RuntimeError, IndexError


class CheckpointSource:
    """The variables of a checkpoint, read in parallel; TensorFlow verifies their checksums.

    Variables of a `tf.train.Checkpoint` or a SavedModel have their own names here, not their paths.
    Raises CorruptCheckpoint, which names the tensor.
    """

    def __init__(self, prefix: str | Path):
        self.description = self.prefix = str(prefix)
        check_files(prefix)
        try:
            self._reader = tf.train.load_checkpoint(self.prefix)
            shapes = self._reader.get_variable_to_shape_map()
            self._dtypes = self._reader.get_variable_to_dtype_map()
            self._keys = self._names(sorted(shapes))
        except _read_errors() as error:
            raise CorruptCheckpoint(f"{prefix} cannot be read: {error}") from error
        self.entries = {
            name: Entry(tuple(shapes[key]), self._dtypes[key].name)
            for name, key in self._keys.items()
        }

    def _names(self, keys: list[str]) -> dict[str, str]:
        """Names of variables to keys of the checkpoint."""
        if _OBJECT_GRAPH not in keys:
            return {key: key for key in keys}
        full = full_names(self._reader.get_tensor(_OBJECT_GRAPH))
        return {
            full.get(key) or key.removesuffix(_VALUE): key for key in keys if key != _OBJECT_GRAPH
        }

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        if not names:
            return
        keys = [self._keys[name] for name in names]
        try:
            tensors = tf.raw_ops.RestoreV2(
                prefix=self.prefix,
                tensor_names=keys,
                shape_and_slices=[""] * len(keys),
                dtypes=[self._dtypes[key] for key in keys],
            )
        except tf.errors.OpError as error:
            damaged = self._damaged(names) or error
            raise CorruptCheckpoint(f"{self.prefix}: {damaged}") from error
        yield from zip(names, tensors, strict=True)

    def _damaged(self, names: Sequence[str]) -> str | None:
        """The damaged tensor, which TensorFlow's error does not name."""
        for name in names:
            try:
                self._reader.get_tensor(self._keys[name])
            except _read_errors():
                return f"the tensor {name!r} is damaged"
        return None


def full_names(serialized: bytes) -> dict[str, str]:
    """Keys of an object-based checkpoint to names of variables, except for ambiguous names.

    `tf.train.Checkpoint` and SavedModel store a variable under the path of attributes that leads to
    it, and add a graph of the objects, which contains the variables' own names. The type of that
    graph is private to TensorFlow. If it is not available, the paths serve as names.
    """
    try:
        module = importlib.import_module("tensorflow.core.protobuf.trackable_object_graph_pb2")
        graph = module.TrackableObjectGraph.FromString(serialized)
    except (ImportError, AttributeError):
        return {}
    names: dict[str, str] = {}
    keys: dict[str, set[str]] = {}
    for node in graph.nodes:
        for attribute in node.attributes:
            if attribute.full_name:
                names[attribute.checkpoint_key] = attribute.full_name
                keys.setdefault(attribute.full_name, set()).add(attribute.checkpoint_key)
    return {key: name for key, name in names.items() if len(keys[name]) == 1}


def verify_checkpoint(prefix: str | Path) -> list[str]:
    """Reads the whole checkpoint and describes each damaged file or tensor."""
    problems = []
    try:
        check_files(prefix)
    except CorruptCheckpoint as damage:
        problems.append(str(damage))
    return [*problems, *_damaged_tensors(prefix)]


def _damaged_tensors(prefix: str | Path) -> Iterator[str]:
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        names = sorted(reader.get_variable_to_shape_map())
    except _read_errors() as error:
        yield f"{Path(prefix).name}.index cannot be read: {_first_line(error)}"
        return
    for name in names:
        try:
            reader.get_tensor(name)
        except _read_errors() as error:
            yield f"tensor {name!r} is damaged: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
