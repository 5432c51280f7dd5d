"""Variables in TensorFlow's checkpoints: towerpack's, tensorpack's, `tf.train.Checkpoint`'s."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from towerpack.checkpoint.direct_read import read_directly
from towerpack.checkpoint.manifest import CorruptCheckpoint, check_files
from towerpack.checkpoint.object_graph import OBJECT_GRAPH, full_names
from towerpack.checkpoint.source import Entry
from towerpack.core.optional import Lazy

tf: Any = Lazy("towerpack._tensorflow", "tf", extra="tf")  # not needed to list checkpoints

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def read_errors() -> tuple[type[Exception], ...]:
    """What TensorFlow's reader raises, by the kind of damage; a cut file is an IndexError."""
    return tf.errors.OpError, ValueError, RuntimeError, IndexError


class CheckpointSource:
    """The variables of a checkpoint, read in parallel, and compared with their checksums.

    What `tf.train.Checkpoint` or a SavedModel holds is known by the variables' own names. Raises
    CorruptCheckpoint, which names the tensor.
    """

    def __init__(self, prefix: str | Path):
        self.description = self.prefix = str(prefix)
        self._manifest = check_files(prefix)
        try:
            self._reader = tf.train.load_checkpoint(self.prefix)
            shapes = self._reader.get_variable_to_shape_map()
            self._dtypes = self._reader.get_variable_to_dtype_map()
            names = self._names(sorted(shapes))
        except read_errors() as error:
            raise CorruptCheckpoint(f"{prefix} cannot be read: {error}") from error
        self._keys = names
        self.entries = {
            name: Entry(tuple(shapes[key]), self._dtypes[key].name) for name, key in names.items()
        }

    def _names(self, keys: list[str]) -> dict[str, str]:
        if OBJECT_GRAPH not in keys:
            return {key: key for key in keys}
        full = full_names(self._reader.get_tensor(OBJECT_GRAPH))
        return {
            full.get(key) or key.removesuffix(_VALUE): key for key in keys if key != OBJECT_GRAPH
        }

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        try:
            direct = read_directly(self.prefix, self._manifest, names)
        except CorruptCheckpoint as error:
            raise CorruptCheckpoint(f"{self.prefix}: {error}") from error
        yield from direct.items()
        names = [name for name in names if name not in direct]
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
            raise CorruptCheckpoint(f"{self.prefix}: {self._culprit(names) or error}") from error
        yield from zip(names, tensors, strict=True)

    def _culprit(self, names: Sequence[str]) -> str | None:
        """The tensor at fault: TensorFlow says only that there is one."""
        for name in names:
            try:
                self._reader.get_tensor(self._keys[name])
            except read_errors():
                return f"the tensor {name!r} is damaged"
        return None
