"""Directories of .npy and .npz files."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.dataflow.format.corrupt import CorruptRecord
from towerpack.dataflow.format.file_list import Paths, file_list
from towerpack.dataflow.format.record_source import OnError, RecordSource
from towerpack.dataflow.from_arrays import DataFromArrays


class NumpyColumns(DataFromArrays):
    """The rows of arrays that lie in a directory, one `.npy` file for each component, as dicts.

    `images.npy` and `labels.npy` give `{'images': ..., 'labels': ...}`; `names` chooses, and gives
    lists in its order instead. The arrays are memory-mapped: larger than memory is fine, and
    workers share the pages. Random access; batches are one indexing call per component. Pickled
    objects in them are refused.
    """

    def __init__(
        self,
        directory: str | Path,
        names: Sequence[str] | None = None,
        shuffle: bool = False,
        *,
        seed: int = 0,
    ):
        self.directory = Path(directory).expanduser()
        chosen = list(names) if names is not None else self._names()
        paths = [self.directory / f"{name}.npy" for name in chosen]
        arrays = [load_array(path, mapped=True) for path in paths]
        if names is None:
            super().__init__(dict(zip(chosen, arrays, strict=True)), shuffle=shuffle, seed=seed)
        else:
            super().__init__(*arrays, shuffle=shuffle, seed=seed)
        self._paths = paths

    def _names(self) -> list[str]:
        names = sorted(path.stem for path in self.directory.glob("*.npy"))
        if not names:
            raise FileNotFoundError(f"{self.directory} has no .npy files")
        return names

    def __getstate__(self) -> dict[str, Any]:
        # A mapped array would be pickled with its content.
        return {key: value for key, value in self.__dict__.items() if key != "arrays"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.arrays = [load_array(path, mapped=True) for path in self._paths]


class NumpyFiles(RecordSource):
    """One datapoint in each file: the array of a `.npy`, the dict of arrays of an `.npz`.

    `paths` is a directory (all its .npy and .npz files, sorted), a pattern or a list. Random
    access; every file once per pass. Pickled objects in them are refused.
    """

    def __init__(
        self,
        paths: Paths,
        shuffle: bool = False,
        *,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        super().__init__(shuffle, seed, on_error)
        found = file_list(paths)
        if len(found) == 1 and found[0].is_dir():
            found = sorted(p for p in found[0].iterdir() if p.suffix in (".npy", ".npz"))
            if not found:
                raise FileNotFoundError(f"{paths} has no .npy or .npz files")
        self.paths = found

    def count(self) -> int:
        return len(self.paths)

    def load(self, row: int) -> Any:
        path = self.paths[row]
        return load_array(path) if path.suffix == ".npy" else load_arrays(path)


def load_array(path: Path, mapped: bool = False) -> np.ndarray:
    """The array of a .npy file; `CorruptRecord` if it is truncated, damaged or holds pickles."""
    try:
        # numpy compares the file's size with the shape before it maps it.
        return np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise CorruptRecord(f"{path} cannot be read as a .npy file: {error}") from error


def load_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name; `CorruptRecord` if it is damaged or holds pickles."""
    try:
        # Opened here, since numpy leaves a file open that it cannot read.
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise CorruptRecord(f"{path} cannot be read as an .npz file: {error}") from error
