"""HDF5 files as sources."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core.optional import require
from towerpack.dataflow.base import Pass
from towerpack.dataflow.format.corrupt import CorruptRecord
from towerpack.dataflow.format.per_process import PerProcess
from towerpack.dataflow.shuffled_source import ShuffledSource

# What h5py raises at damaged bytes: its translation of HDF5's errors, by the place of the damage.
H5PY_ERRORS = (OSError, RuntimeError, ValueError, KeyError, TypeError, MemoryError)


class HDF5Data(ShuffledSource):
    """Datapoints from the rows of equally long datasets of an HDF5 file: `[first, second, ...]`.

    Random access; every row once per pass. By default the datasets are read into memory, in each
    process on first use, and batches are gathered with one indexing call per component.
    `in_memory=False` reads each row from the file: for files larger than memory. That is quick if
    the chunks are small; a compressed chunk of many rows is unpacked for each of them.
    """

    def __init__(
        self,
        filename: str | Path,
        data_paths: Sequence[str],
        shuffle: bool = False,
        *,
        in_memory: bool = True,
        seed: int = 0,
    ):
        super().__init__(shuffle, seed)
        if isinstance(data_paths, str) or not data_paths:
            raise ValueError(f"expected a list of dataset names, received {data_paths!r}")
        self.path, self.data_paths = Path(filename).expanduser(), list(data_paths)
        opener = functools.partial(_open, self.path, self.data_paths, in_memory)
        self._handle: PerProcess[_Opened] = PerProcess(opener)
        datasets = self._handle.get().datasets
        lengths = {name: len(data) for name, data in zip(data_paths, datasets, strict=True)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{self.path}: expected datasets of one length, received {lengths}")
        self._count = len(datasets[0])

    def __len__(self) -> int:
        return self._count

    @property
    def _datasets(self) -> list[Any]:
        return self._handle.get().datasets

    def read(self, row: int) -> Any:
        try:
            return [data[row] for data in self._datasets]
        except H5PY_ERRORS as error:
            raise CorruptRecord(f"{self.path}, row {row}: {error}") from error

    def read_rows(self, rows: np.ndarray) -> list[Any]:
        return [list(row) for row in zip(*map(self._rows_of(rows), self._datasets), strict=True)]

    def gather(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> Any:
        fetch = self._rows_of(self.rows(indices, pass_))
        batch = []
        for data in self._datasets:
            found = fetch(data)
            if found.dtype.hasobject:  # text of different lengths
                batch.append(found.astype(str if isinstance(found.flat[0], str) else bytes))
                continue
            out = pass_.allocate(found.shape, found.dtype)
            out[...] = found
            batch.append(out)
        return batch

    def _rows_of(self, rows: np.ndarray) -> Any:
        def fetch(data: Any) -> np.ndarray:
            if isinstance(data, np.ndarray):
                return data[rows]
            # h5py wants each row once and in rising order.
            unique, back = np.unique(rows, return_inverse=True)
            try:
                return data[unique][back]
            except H5PY_ERRORS as error:
                raise CorruptRecord(f"{self.path}, {data.name}: {error}") from error

        return fetch


class _Opened:
    """An open file and its datasets; in memory, the file is closed again."""

    def __init__(self, file: Any, datasets: list[Any]):
        self.file, self.datasets = file, datasets


def _open(path: Path, names: list[str], in_memory: bool) -> _Opened:
    h5py = require("h5py", extra="hdf5")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        file = h5py.File(path, "r", locking=False)
    except H5PY_ERRORS as error:
        raise CorruptRecord(f"{path} is no HDF5 file, or is truncated: {error}") from error
    try:
        try:
            datasets = [_dataset(h5py, file, name, path) for name in names]
        except (OSError, RuntimeError) as error:
            raise CorruptRecord(f"{path} is damaged: {error}") from error
        if not in_memory:
            return _Opened(file, datasets)
        try:
            loaded = [data[...] for data in datasets]
        except H5PY_ERRORS as error:
            raise CorruptRecord(f"{path} is damaged: {error}") from error
    except BaseException:
        file.close()
        raise
    file.close()
    return _Opened(None, loaded)


def _dataset(h5py: Any, file: Any, name: str, path: Path) -> Any:
    data = file.get(name)
    if not isinstance(data, h5py.Dataset):
        raise KeyError(f"{path} has no dataset {name!r}; it has {dataset_names(file)}")
    if not data.shape:
        raise ValueError(f"{path}: {name!r} is a scalar; expected rows of datapoints")
    return data.asstr() if h5py.check_string_dtype(data.dtype) else data


def dataset_names(file: Any) -> list[str]:
    """The names of all datasets in an open HDF5 file."""
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if hasattr(item, "shape") else None)
    return names
