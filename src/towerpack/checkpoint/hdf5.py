"""Weights that Keras saved: `.weights.h5`, and the older `.h5`.

Only numbers are read, from the file itself: a dataset that lies in another file, or is computed
from others, is refused, and links are not followed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from towerpack.checkpoint.slots import KERAS_OPTIMIZER
from towerpack.checkpoint.source import Entry
from towerpack.checkpoint.untrusted import UntrustedFile
from towerpack.core.optional import require


class Hdf5Source:
    """The arrays of an HDF5 file.

    Keras 3 numbers the variables of a layer; they are named `<layer>/0`, `<layer>/1` here, and
    those of the optimizer, if they were saved too, `optimizer/vars/0` and so on. Other
    files have names (`dense/kernel:0`), which stay, without the `:0`. Rename them on loading.
    """

    def __init__(self, path: str | Path):
        self.description, self._path = str(path), path
        with self._open() as file:
            self._places = _names(file)
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
            raise ValueError(f"{self._path} is damaged, or no HDF5 file: {error}") from error


def _names(file: Any) -> dict[str, str]:
    """Names of variables to places in the file."""
    h5py = require("h5py", extra="hdf5")
    places: list[tuple[str, str]] = []

    def visit(place: str, item: Any) -> None:  # `visititems` does not follow links
        if not isinstance(item, h5py.Dataset):
            return
        if item.external or item.is_virtual:
            raise UntrustedFile(f"{file.filename}: {place} refers to other files; not followed")
        if item.dtype.kind not in "biufcV" or item.dtype.hasobject or item.dtype.fields:
            raise UntrustedFile(f"{file.filename}: {place} holds {item.dtype}, not numbers")
        places.append((_name(file, place), place))

    file.visititems(visit)
    # Layers of one name in two models of a file: then the place is the name.
    counts = Counter(name for name, _ in places)
    return {name if counts[name] == 1 else place: place for name, place in places}


def _name(file: Any, place: str) -> str:
    group, _, number = place.rpartition("/")
    if group == KERAS_OPTIMIZER:
        return place
    if group.endswith("vars") and number.isdigit():
        layer = file[group].attrs.get("name")
        return f"{layer}/{number}" if isinstance(layer, str) and layer else place
    return place.removeprefix("model_weights/").removesuffix(":0")
