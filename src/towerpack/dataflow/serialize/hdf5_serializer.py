"""Flows stored in HDF5 files."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core.optional import require
from towerpack.core.progress import track
from towerpack.dataflow.base import DataFlow, as_flow
from towerpack.dataflow.format.atomic_path import atomic_path
from towerpack.dataflow.format.hdf5 import HDF5Data
from towerpack.dataflow.stacking import stack_rows

ROWS_AT_ONCE = 256
CHUNK_BYTES = 1 << 16  # a chunk has its own checksum, and is read as a whole


class _Sink(io.FileIO):
    """The file under an HDF5 file. It keeps an error of the disk for `check` to raise.

    HDF5 must not see it: after a write that failed, closing the file crashes the process.
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


class HDF5Serializer:
    """A flow's components as the datasets of an HDF5 file: all datapoints of one shape."""

    @staticmethod
    def save(
        df: DataFlow | Iterable[Any], path: str | os.PathLike[str], data_paths: Sequence[str]
    ) -> None:
        """Writes one pass of the flow, component i to the dataset `data_paths[i]`; atomic.

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
                raise ValueError(f"{path}: the flow is empty, and a dataset needs a shape")
            file.flush()
            sink.check()

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        data_paths: Sequence[str],
        shuffle: bool = False,
        *,
        in_memory: bool = True,
        seed: int = 0,
    ) -> HDF5Data:
        """The stored datapoints as a flow with random access."""
        return HDF5Data(Path(path), data_paths, shuffle, in_memory=in_memory, seed=seed)


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
    """Python numbers as numpy's of the same precision: a batch would make them smaller."""
    if isinstance(value, bool | str | bytes):
        return value
    return (
        np.int64(value)
        if isinstance(value, int)
        else (np.float64(value) if isinstance(value, float) else value)
    )


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
            # h5py has no checksum for text of variable length, which lies outside the chunks
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
