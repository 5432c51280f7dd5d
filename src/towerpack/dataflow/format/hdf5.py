"""HDF5 files, read and written."""

from __future__ import annotations

import contextlib
import functools
import io
import os
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core.optional import require
from towerpack.core.progress import track
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.format.files import CorruptRecord, PerProcess, atomic_path
from towerpack.dataflow.format.records import Format, OnError, Stored, components
from towerpack.dataflow.source.iterable import as_flow
from towerpack.dataflow.source.stored import ShuffledSource
from towerpack.dataflow.stacking import stack_rows

# What h5py raises for damaged bytes, depending on where the damage is.
H5PY_ERRORS = (OSError, RuntimeError, ValueError, KeyError, TypeError, MemoryError)
ROWS_AT_ONCE = 256
CHUNK_BYTES = 1 << 16  # a chunk has its own checksum, and is read as a whole


class HDF5Data(ShuffledSource):
    """Datapoints from the rows of equally long datasets of an HDF5 file: `[first, second, ...]`.

    Random access; every row once per epoch. By default the datasets are read into memory, in each
    process on first use, and a batch takes one indexing call per component. With `in_memory=False`
    each row is read from the file, which is for files larger than memory. That is quick if the
    chunks are small; a compressed chunk of many rows is unpacked for each of its rows.
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
        self._handle: PerProcess[list[Any]] = PerProcess(opener)
        datasets = self._datasets
        lengths = {name: len(data) for name, data in zip(data_paths, datasets, strict=True)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{self.path}: expected datasets of one length, received {lengths}")
        self._count = len(datasets[0])

    def __len__(self) -> int:
        return self._count

    @property
    def _datasets(self) -> list[Any]:
        return self._handle.get()

    def stored(self, row: int) -> Any:
        try:
            return [data[row] for data in self._datasets]
        except H5PY_ERRORS as error:
            raise CorruptRecord(f"{self.path}, row {row}: {error}") from error

    def stored_rows(self, rows: np.ndarray) -> list[Any]:
        columns = [self._column(data, rows) for data in self._datasets]
        return [list(row) for row in zip(*columns, strict=True)]

    def gather(self, indices: Sequence[int] | np.ndarray, epoch: Epoch) -> Any:
        rows = self.places(indices, epoch)
        batch = []
        for data in self._datasets:
            found = self._column(data, rows)
            if found.dtype.hasobject:  # text of different lengths
                batch.append(found.astype(str if isinstance(found.flat[0], str) else bytes))
                continue
            out = epoch.allocate(found.shape, found.dtype)
            out[...] = found
            batch.append(out)
        return batch

    def _column(self, data: Any, rows: np.ndarray) -> np.ndarray:
        if isinstance(data, np.ndarray):
            return data[rows]
        # h5py requires each row once and in rising order.
        unique, back = np.unique(rows, return_inverse=True)
        try:
            return data[unique][back]
        except H5PY_ERRORS as error:
            raise CorruptRecord(f"{self.path}, {data.name}: {error}") from error


def _open(path: Path, names: list[str], in_memory: bool) -> list[Any]:
    """The datasets, which keep the file open, or their content if it is read into memory."""
    h5py = require("h5py", extra="hdf5")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        file = h5py.File(path, "r", locking=False)
    except H5PY_ERRORS as error:
        raise CorruptRecord(f"{path} is not an HDF5 file, or is truncated: {error}") from error
    with contextlib.ExitStack() as stack:
        stack.callback(file.close)
        try:
            datasets = [_dataset(h5py, file, name, path) for name in names]
        except (OSError, RuntimeError) as error:
            raise CorruptRecord(f"{path} is damaged: {error}") from error
        if not in_memory:
            stack.pop_all()
            return datasets
        try:
            return [data[...] for data in datasets]
        except H5PY_ERRORS as error:
            raise CorruptRecord(f"{path} is damaged: {error}") from error


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


class HDF5Serializer:
    """A flow's components as the datasets of an HDF5 file: all datapoints must have one shape.

    `load` gives the datapoints back as a flow with random access.
    """

    load = HDF5Data

    @staticmethod
    def save(
        df: DataFlow | Iterable[Any], path: str | os.PathLike[str], data_paths: Sequence[str]
    ) -> None:
        """Writes one epoch of the flow, component i to the dataset `data_paths[i]`; atomic.

        Python ints are stored as int64, floats as float64. Each chunk carries a checksum.
        """
        h5py = require("h5py", extra="hdf5")
        names = list(data_paths)
        rows = iter(track(as_flow(df), description=f"writing {path}"))
        count = 0
        with (
            atomic_path(Path(path)) as temporary,
            _Sink(temporary, "w+b") as sink,
            # Since version 1.10 the format has checksums for everything but text.
            h5py.File(sink, "w", libver=("v110", "v110")) as file,
        ):
            while block := list(islice(rows, ROWS_AT_ONCE)):
                batch = stack_rows(
                    [_row(datapoint, names, count + i) for i, datapoint in enumerate(block)],
                    indices=range(count, count + len(block)),
                )
                for name, column in zip(names, batch, strict=True):
                    _append(h5py, file, name, column, count)
                sink.check()
                count += len(block)
            if not count:
                raise ValueError(f"{path}: the flow is empty, but a dataset needs a shape")
            file.flush()
            sink.check()


class _Sink(io.FileIO):
    """The file that HDF5 writes to. It keeps an error of the disk for `check` to raise.

    HDF5 must not see that error: closing the file after a failed write crashes the process.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        while len(left) and self.error is None:
            try:
                left = left[super().write(left) :]
            except OSError as error:
                self.error = error
        return size

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0

    def check(self) -> None:
        if self.error is not None:
            raise self.error


def _row(datapoint: Any, names: list[str], number: int) -> list[Any]:
    if isinstance(datapoint, dict):
        datapoint = [datapoint[name] for name in names]
    if not isinstance(datapoint, list | tuple) or len(datapoint) != len(names):
        raise ValueError(
            f"datapoint {number}: expected {len(names)} components for {names}, received "
            f"{datapoint!r:.80}"
        )
    return [_exact(value) for value in datapoint]


def _exact(value: Any) -> Any:
    """Python numbers as numpy's of the same precision; a batch would reduce it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return np.int64(value)
    return np.float64(value) if isinstance(value, float) else value


def _append(h5py: Any, file: Any, name: str, column: np.ndarray, count: int) -> None:
    text = column.dtype.kind == "U"
    if name not in file:
        dtype = h5py.string_dtype() if text else column.dtype
        row_bytes = max(1, column[0].nbytes)
        rows = max(1, CHUNK_BYTES // row_bytes)
        empty = 0 in column.shape[1:]
        file.create_dataset(
            name,
            shape=(0, *column.shape[1:]),
            maxshape=(None, *column.shape[1:]),
            dtype=dtype,
            chunks=None if empty else (rows, *column.shape[1:]),
            # h5py has no checksum for text of variable length, which is stored outside the chunks
            fletcher32=not text and not empty,
        )
    data = file[name]
    if data.shape[1:] != column.shape[1:] or (not text and data.dtype != column.dtype):
        raise ValueError(
            f"{name}: datapoint {count} and those after it are {column.dtype} of shape "
            f"{column.shape[1:]}, those before it {data.dtype} of shape {data.shape[1:]}"
        )
    data.resize(count + len(column), axis=0)
    data[count:] = column.astype(object) if text else column


def _open_stored(path: Path, on_error: OnError) -> Stored:
    h5py = require("h5py", extra="hdf5")
    try:
        with h5py.File(path, "r", locking=False) as file:
            names = [name for name in dataset_names(file) if file[name].shape]
    except H5PY_ERRORS as error:
        raise CorruptRecord(f"{path} is damaged or truncated: {error}") from error
    if not names:
        raise ValueError(f"{path} has no datasets")
    flow = HDF5Data(path, names, shuffle=False, in_memory=False)
    return Stored("HDF5: " + ", ".join(names), flow)


def _save_stored(flow: DataFlow, path: Path) -> None:
    first = next(iter(flow), None)
    if first is None:
        raise ValueError("the flow is empty")
    HDF5Serializer.save(flow, path, list(components(first)))


FORMAT = Format(
    "HDF5",
    _open_stored,
    is_head=lambda head: head.startswith(b"\x89HDF\r\n\x1a\n"),
    writers=dict.fromkeys((".h5", ".hdf5"), _save_stored),
)
