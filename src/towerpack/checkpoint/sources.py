"""Files of weights in other formats: `.npz`, `.safetensors`, Keras' `.h5`.

Opening a file reads its names, shapes and dtypes; `read` reads values. No file can run code: one
that would need unpickling, or refers to other files, raises `UntrustedFile`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from towerpack.checkpoint.variable_names import KERAS_OPTIMIZER
from towerpack.core.files import atomic_file
from towerpack.core.optional import require
from towerpack.dataflow.format.numpy_files import PickledArray, load_array, load_arrays

_NPY_START = b"\x93NUMPY"
_SAFETENSORS_DTYPES = {
    "BOOL": "bool",
    "BF16": "bfloat16",
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}


class UntrustedFile(ValueError):
    """A file can only be read by running code that is in it, which towerpack never does."""


@dataclass(frozen=True)
class Entry:
    """The shape and dtype of a value that has not been read."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


class Source(Protocol):
    """Values by name. `read` is called once, with the names to load."""

    description: str

    @property
    def entries(self) -> Mapping[str, Entry]: ...

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]: ...


class ArraySource:
    """Arrays in memory.

    >>> ArraySource({"W:0": np.ones([2], np.float32)}, "a dict").entries
    {'W': Entry(shape=(2,), dtype='float32')}
    """

    def __init__(self, arrays: Mapping[str, Any], description: str):
        self.description = description
        # Names of tensors end in :0.
        self._arrays = {name.removesuffix(":0"): np.asarray(a) for name, a in arrays.items()}
        for name, array in self._arrays.items():
            if array.dtype == object and not all(isinstance(v, bytes | str) for v in array.flat):
                raise TypeError(f"expected an array of numbers as {name!r}, received objects")
        self.entries = {name: Entry(a.shape, a.dtype.name) for name, a in self._arrays.items()}

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
        for name in names:
            yield name, self._arrays[name]


def read_npz(path: str | Path) -> dict[str, np.ndarray]:
    """All arrays of an `.npz`, or the array of an `.npy` under the name of its file."""
    path = Path(path)
    try:
        with open(path, "rb") as file:
            if file.read(len(_NPY_START)) == _NPY_START:
                return {path.stem: load_array(path)}
        return load_arrays(path)
    except PickledArray as error:
        raise UntrustedFile(
            f"{path} holds pickled Python objects, and unpickling runs any code in them. If you "
            "trust its author, write its arrays to another file: "
            "np.savez(new, **np.load(old, allow_pickle=True).item())"
        ) from error


class SafetensorsSource:
    """The arrays of a `.safetensors` file."""

    def __init__(self, path: str | Path):
        self.description, self._path = str(path), str(path)
        with self._open() as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no dict)
            self.entries = {
                name: Entry(tuple(part.get_shape()), _plain_dtype(part.get_dtype()))
                for name, part in slices.items()
            }

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        with self._open() as file:
            for name in names:
                yield name, file.get_tensor(name)

    def _open(self) -> Any:
        library = require("safetensors", extra="safetensors")
        try:
            return library.safe_open(self._path, framework="np")
        except library.SafetensorError as error:
            raise ValueError(
                f"{self._path} is damaged or is not a safetensors file: {error}"
            ) from error


def _plain_dtype(name: str) -> str:
    return _SAFETENSORS_DTYPES.get(name, name.lower())


def write_safetensors(arrays: Mapping[str, np.ndarray], path: str | Path) -> None:
    """Writes a `.safetensors` file; it appears when it is complete."""
    library = require("safetensors.numpy", extra="safetensors")
    # `ascontiguousarray` makes scalars one-dimensional.
    plain = {name: np.ascontiguousarray(a).reshape(np.shape(a)) for name, a in arrays.items()}
    with atomic_file(path) as file:
        file.write(library.save(plain))


class Hdf5Source:
    """The arrays of an HDF5 file: Keras' `.weights.h5`, and the older `.h5`.

    Keras 3 numbers the variables of a layer. They are named `<layer>/0`, `<layer>/1` here, and
    those of a saved optimizer `optimizer/vars/0` and so on. Names in other files (`dense/kernel:0`)
    are kept without the `:0`. Rename them on loading.

    Only numbers in the file itself are read: a dataset that refers to other files or is computed
    from other datasets raises `UntrustedFile`, and links are not followed.
    """

    def __init__(self, path: str | Path):
        self.description, self._path = str(path), path
        with self._open() as file:
            self._places = _hdf5_places(file)
            self.entries = {
                name: Entry(tuple(file[place].shape), file[place].dtype.name)
                for name, place in self._places.items()
            }

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        with self._open() as file:
            for name in names:
                yield name, file[self._places[name]][()]

    def _open(self) -> Any:
        try:
            return require("h5py", extra="hdf5").File(self._path, "r")
        except OSError as error:
            raise ValueError(f"{self._path} is damaged or is not an HDF5 file: {error}") from error


def _hdf5_places(file: Any) -> dict[str, str]:
    """Names of variables to places in the file."""
    h5py = require("h5py", extra="hdf5")
    places: list[tuple[str, str]] = []

    def visit(place: str, item: Any) -> None:  # `visititems` does not follow links
        if not isinstance(item, h5py.Dataset):
            return
        if item.external or item.is_virtual:
            raise UntrustedFile(
                f"{file.filename}: {place} refers to other files, which are never opened"
            )
        if item.dtype.kind not in "biufcV" or item.dtype.hasobject or item.dtype.fields:
            raise UntrustedFile(f"{file.filename}: {place} holds {item.dtype}, not numbers")
        places.append((_hdf5_name(file, place), place))

    file.visititems(visit)
    # If two models in a file have layers of the same name, the place serves as the name.
    counts = Counter(name for name, _ in places)
    return {name if counts[name] == 1 else place: place for name, place in places}


def _hdf5_name(file: Any, place: str) -> str:
    group, _, number = place.rpartition("/")
    if group == KERAS_OPTIMIZER:
        return place
    if group.endswith("vars") and number.isdigit():
        layer = file[group].attrs.get("name")
        return f"{layer}/{number}" if isinstance(layer, str) and layer else place
    return place.removeprefix("model_weights/").removesuffix(":0")
