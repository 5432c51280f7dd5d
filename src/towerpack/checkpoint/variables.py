"""All variables of a checkpoint or another file: as a dict, averaged, compared."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.checkpoint.directory import STATE_FILE, get_checkpoint_path, sound_checkpoints
from towerpack.checkpoint.manifest import CorruptCheckpoint
from towerpack.checkpoint.report import LoadError
from towerpack.checkpoint.snapshot import view_of
from towerpack.checkpoint.sources import (
    ArraySource,
    Hdf5Source,
    SafetensorsSource,
    Source,
    UntrustedFile,
    read_npz,
    write_safetensors,
)
from towerpack.checkpoint.store import save_checkpoint
from towerpack.checkpoint.tensorflow_file import CheckpointSource
from towerpack.checkpoint.variable_names import owners
from towerpack.core import logger
from towerpack.core.files import atomic_file

_PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".joblib")
_SAVED_MODEL = "saved_model.pb"
# A checkpoint with such a name could not be distinguished from a file of another format.
_NOT_WRITTEN = (".h5", ".hdf5", ".keras", ".npy", ".pb", ".index", ".meta", ".pkl", ".pt", ".pth")


def open_source(obj: Mapping[str, Any] | str | Path) -> Source:
    """The values in a dict, checkpoint, directory, npz, safetensors, Keras weights or SavedModel.

    In a directory of checkpoints, it is the latest one whose files are sound.
    """
    if isinstance(obj, Mapping):
        return ArraySource(obj, "a dict")
    return next(open_in_turn(obj))()


def open_in_turn(path: str | Path) -> Iterator[Callable[[], Source]]:
    """What to open, best first; only a directory yields several, in case the latest is damaged."""
    path = _matched(path)
    name = path.name.lower()
    if name.endswith((".npz", ".npy")):
        yield lambda: ArraySource(read_npz(path), str(path))
    elif name.endswith(".safetensors"):
        yield lambda: SafetensorsSource(path)
    elif name.endswith((".h5", ".hdf5")):
        yield lambda: Hdf5Source(path)
    elif name.endswith(".keras"):
        raise UntrustedFile(
            f"{path} holds a whole model, whose configuration may contain code, and is not opened; "
            "save the weights alone: model.save_weights('name.weights.h5')"
        )
    elif name.endswith(_PICKLES):
        raise UntrustedFile(
            f"{path} is a pickle according to its name, and unpickling runs whatever code is in "
            "it; if you trust it, write its arrays to an .npz or .safetensors file"
        )
    elif is_directory_of_checkpoints(path):
        directory = path if path.is_dir() else path.parent
        found = False
        for prefix in sound_checkpoints(directory):
            found = True
            yield lambda prefix=prefix: CheckpointSource(prefix)  # type: ignore[misc]
        if not found:
            raise FileNotFoundError(f"there is no sound checkpoint in {directory}")
    elif path.is_dir():
        yield lambda: CheckpointSource(path / "variables" / "variables")
    else:
        yield lambda: CheckpointSource(get_checkpoint_path(path))


def is_directory_of_checkpoints(path: str | Path) -> bool:
    """Whether the path means the latest of several checkpoints."""
    path = Path(path)
    return path.name == STATE_FILE or (path.is_dir() and not (path / _SAVED_MODEL).exists())


def _matched(path: str | Path) -> Path:
    """The single checkpoint or file that a pattern matches; a path without wildcards as it is."""
    if not glob.has_magic(str(path)) or Path(path).exists():
        return Path(path)
    found = {_whole_checkpoint(file) for file in glob.glob(str(path))}
    if len(found) != 1:
        listed = ", ".join(sorted(found)) or "nothing"
        raise FileNotFoundError(
            f"expected the pattern {path} to match one checkpoint or file, found {listed}"
        )
    return Path(found.pop())


def _whole_checkpoint(file: str) -> str:
    """The checkpoint to which a file belongs, since a pattern may match several of its files."""
    try:
        return get_checkpoint_path(file) if not Path(file).is_dir() else file
    except FileNotFoundError:
        return file


def load_checkpoint_vars(path: str | Path) -> dict[str, np.ndarray]:
    """All values by name, from a checkpoint or any other file that `SmartInit` loads.

    In a directory, it loads the latest checkpoint, or if that is damaged the one before it.
    """
    damage: CorruptCheckpoint | None = None
    for open_it in open_in_turn(path):
        try:
            source = open_it()
            return {
                name: value.numpy() if hasattr(value, "numpy") else np.asarray(value)
                for name, value in source.read(sorted(source.entries))
            }
        except CorruptCheckpoint as error:
            logger.warning("a damaged checkpoint is skipped: %s", error)
            damage = error
    raise damage or FileNotFoundError(f"there is no checkpoint in {path}")


def save_checkpoint_vars(dic: Mapping[str, Any], path: str | Path) -> str:
    """Writes variables or arrays to an `.npz` or `.safetensors` file, or else a checkpoint.

    The file appears when it is complete.

    >>> import tempfile
    >>> path = save_checkpoint_vars({"fc/W:0": np.ones(3)}, tempfile.mkdtemp() + "/weights.npz")
    >>> list(load_checkpoint_vars(path))
    ['fc/W']
    """
    if str(path).lower().endswith(_NOT_WRITTEN):
        raise ValueError(
            f"expected a name ending in .npz or .safetensors, or else the prefix of a checkpoint, "
            f"received {path}"
        )
    values = {name.removesuffix(":0"): view_of(value) for name, value in dic.items()}
    if str(path).endswith(".npz"):
        with atomic_file(path) as file:
            np.savez_compressed(file, allow_pickle=False, **values)
    elif str(path).endswith(".safetensors"):
        write_safetensors(values, path)
    else:
        save_checkpoint(values, path)
    return str(path)


def model_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables that the model needs to predict: no slots, averages and counters."""
    foreign = owners(variables)
    return {name: variable for name, variable in variables.items() if name not in foreign}


def dump_model_params(variables: Mapping[str, Any], path: str | Path) -> str:
    """Writes the variables of a model without those of its optimizer, to publish them.

    `variables` are `trainer.store.saved()`, or what `load_checkpoint_vars` returned.
    """
    return save_checkpoint_vars(model_variables(variables), path)


def average_checkpoints(paths: Sequence[str | Path]) -> dict[str, np.ndarray]:
    """The mean of each floating-point variable of the model; others are from the last checkpoint.

    Sums are computed in float64. Slots of optimizers and counters are left out.
    """
    if len(paths) < 2:
        raise ValueError(f"expected at least two checkpoints to average, received {len(paths)}")
    wanted = model_variables(open_source(paths[-1]).entries)
    total: dict[str, np.ndarray] = {}
    for path in paths:
        values = load_checkpoint_vars(path)
        for name, entry in wanted.items():
            found = values.get(name)
            if found is None or found.shape != entry.shape:
                received = "nothing" if found is None else f"shape {list(found.shape)}"
                raise LoadError(f"expected {name} as {entry} in {path}, received {received}")
            if _is_floating(found):
                total[name] = total.get(name, 0.0) + found.astype(np.float64)
            else:
                total[name] = found
    dtypes = {name: values[name].dtype for name in wanted}
    return {
        name: (value / len(paths)).astype(dtypes[name]) if _is_floating(values[name]) else value
        for name, value in total.items()
    }


def _is_floating(array: np.ndarray) -> bool:
    # bfloat16 and similar types are not subtypes of np.floating.
    return np.issubdtype(array.dtype, np.inexact) or "float" in array.dtype.name


@dataclass(frozen=True)
class Difference:
    """A name that differs; `kind` is 'only in A', 'only in B', 'type', 'shape' or 'values'."""

    name: str
    kind: str
    details: str


def compare_checkpoints(first: str | Path, second: str | Path) -> Iterator[Difference]:
    """The names whose values are not bit-identical, sorted."""
    entries_a, entries_b = open_source(first).entries, open_source(second).entries
    values_a, values_b = load_checkpoint_vars(first), load_checkpoint_vars(second)
    for name in sorted({*entries_a, *entries_b}):
        a, b = entries_a.get(name), entries_b.get(name)
        if a is None or b is None:
            yield Difference(name, "only in B" if a is None else "only in A", str(a or b))
        elif a.shape != b.shape:
            yield Difference(name, "shape", f"{a} and {b}")
        elif a.dtype != b.dtype:
            yield Difference(name, "type", f"{a} and {b}")
        elif values_a[name].tobytes() != values_b[name].tobytes():
            yield Difference(name, "values", _distance(values_a[name], values_b[name]))


def _distance(a: np.ndarray, b: np.ndarray) -> str:
    if a.dtype == object or a.dtype.kind in "SU":
        return "different strings"
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(a.astype(np.complex128) - b.astype(np.complex128))
        largest, scale = np.max(distance), np.max(np.abs(b.astype(np.complex128)))
    changed = int(np.sum(~(distance == 0)))
    return f"{changed} of {a.size} differ, by at most {largest:.4g} (largest value {scale:.4g})"


load_chkpt_vars = load_checkpoint_vars
save_chkpt_vars = save_checkpoint_vars
