"""All variables of a checkpoint or another file: as a dict, averaged, compared."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from towerpack.checkpoint.directory import STATE_FILE, get_checkpoint_path, sound_checkpoints
from towerpack.checkpoint.manifest import CorruptCheckpoint
from towerpack.checkpoint.report import LoadError
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

T = TypeVar("T")

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
    return use_source(obj, lambda source: source)


def use_source(path: str | Path, use: Callable[[Source], T]) -> T:
    """Opens a file, calls `use` with its values, and returns the result.

    In a directory of checkpoints, it opens the latest one. If that turns out to be damaged, it logs
    a warning and calls `use` again with the one before.
    """
    path = resolve_pattern(path)
    if not is_directory_of_checkpoints(path):
        return use(_open_file(path))
    directory = path if path.is_dir() else path.parent
    damage: CorruptCheckpoint | None = None
    for prefix in sound_checkpoints(directory):
        try:
            return use(CheckpointSource(prefix))
        except CorruptCheckpoint as error:
            logger.warning("a damaged checkpoint is skipped: %s", error)
            damage = error
    raise damage or FileNotFoundError(f"there is no sound checkpoint in {directory}")


def _open_file(path: Path) -> Source:
    name = path.name.lower()
    if name.endswith((".npz", ".npy")):
        return ArraySource(read_npz(path), str(path))
    if name.endswith(".safetensors"):
        return SafetensorsSource(path)
    if name.endswith((".h5", ".hdf5")):
        return Hdf5Source(path)
    if name.endswith(".keras"):
        raise UntrustedFile(
            f"{path} is not opened: it holds a whole model, whose configuration may contain code. "
            "Save the weights alone: model.save_weights('name.weights.h5')"
        )
    if name.endswith(_PICKLES):
        raise UntrustedFile(
            f"{path} is not opened: its name is that of a pickle, and unpickling runs any code "
            "in it. If you trust it, write its arrays to an .npz or .safetensors file"
        )
    if path.is_dir():
        return CheckpointSource(path / "variables" / "variables")
    return CheckpointSource(get_checkpoint_path(path))


def is_directory_of_checkpoints(path: str | Path) -> bool:
    """Whether the path stands for the latest of several checkpoints."""
    path = Path(path)
    return path.name == STATE_FILE or (path.is_dir() and not (path / _SAVED_MODEL).exists())


def resolve_pattern(path: str | Path) -> Path:
    """The one checkpoint or file that a pattern matches; any other path is returned unchanged."""
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

    In a directory, it loads the latest checkpoint, or the one before it if that is damaged.
    """
    return use_source(path, _all_values)


def _all_values(source: Source) -> dict[str, np.ndarray]:
    return {
        name: value.numpy() if hasattr(value, "numpy") else np.asarray(value)
        for name, value in source.read(sorted(source.entries))
    }


def save_checkpoint_vars(dic: Mapping[str, Any], path: str | Path) -> str:
    """Writes variables or arrays to an `.npz` or `.safetensors` file, otherwise a checkpoint.

    The file appears when it is complete.

    >>> import tempfile
    >>> path = save_checkpoint_vars({"fc/W:0": np.ones(3)}, tempfile.mkdtemp() + "/weights.npz")
    >>> list(load_checkpoint_vars(path))
    ['fc/W']
    """
    if str(path).lower().endswith(_NOT_WRITTEN):
        raise ValueError(
            f"expected a name ending in .npz or .safetensors, or the prefix of a checkpoint, "
            f"received {path}"
        )
    values = {name.removesuffix(":0"): value for name, value in dic.items()}
    if not str(path).endswith((".npz", ".safetensors")):
        return save_checkpoint(values, path)
    arrays = {name: np.asarray(value) for name, value in values.items()}
    if str(path).endswith(".npz"):
        with atomic_file(path) as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
    else:
        write_safetensors(arrays, path)
    return str(path)


def model_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables that the model needs to predict: without slots, averages and counters."""
    foreign = owners(variables)
    return {name: variable for name, variable in variables.items() if name not in foreign}


def dump_model_params(variables: Mapping[str, Any], path: str | Path) -> str:
    """Writes the variables of a model, without those of its optimizer, in order to publish them.

    `variables` come from `trainer.store.saved()` or `load_checkpoint_vars`.
    """
    return save_checkpoint_vars(model_variables(variables), path)


def average_checkpoints(paths: Sequence[str | Path]) -> dict[str, np.ndarray]:
    """The mean of each floating-point variable of the model, summed in float64.

    Other variables are those of the last checkpoint. Slots of optimizers and counters are left out.
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
    """A variable that differs; `kind` is 'only in A', 'only in B', 'type', 'shape' or 'values'."""

    name: str
    kind: str
    details: str


def compare_checkpoints(first: str | Path, second: str | Path) -> Iterator[Difference]:
    """The variables that are not bit-identical, sorted by name."""
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
