"""Parquet files, read and written by pyarrow."""

from __future__ import annotations

import functools
import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core.optional import require
from towerpack.core.progress import track
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.format.files import CorruptRecord, Paths, PerProcess, atomic_path, file_list
from towerpack.dataflow.format.records import Format, OnError, RecordSource, Stored, components
from towerpack.dataflow.source.iterable import as_flow

GROUPS_KEPT = 4  # row groups in memory per process: neighbours come from the same one
ROWS_PER_GROUP = 1024  # small, since to read one row its whole group is read
# pyarrow's own errors are kinds of these.
PYARROW_ERRORS = (OSError, ValueError, KeyError, TypeError, NotImplementedError, MemoryError)

_Groups = OrderedDict[int, dict[str, Any]]


class ParquetData(RecordSource):
    """The rows of one or more Parquet files as dicts of their `columns` (all by default).

    Numbers come as numpy scalars, lists of numbers and tensors as arrays, text as str, binary as
    bytes. Random access; every row once per epoch. A row group is read as a whole. The last few are
    kept, so that reading in order is quick, while shuffling a file of large groups reads a whole
    group for each row. To shuffle, write the file with small groups (`write_parquet` does), or use
    `LocallyShuffleData`.
    """

    def __init__(
        self,
        paths: Paths,
        columns: Sequence[str] | None = None,
        shuffle: bool = False,
        *,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        super().__init__(shuffle, seed, on_error)
        self.paths = file_list(paths)
        self.columns = list(columns) if columns is not None else None
        self._files = [PerProcess(functools.partial(_open, path)) for path in self.paths]
        self._groups: list[tuple[int, int]] = []  # file and group number
        sizes = []
        for which, handle in enumerate(self._files):
            file, rows = handle.get()
            self._check_columns(file.schema_arrow.names, which)
            self._groups += [(which, group) for group in range(len(rows))]
            sizes += rows
        self._starts = np.cumsum([0, *sizes])
        self._cache: PerProcess[_Groups] = PerProcess(OrderedDict)

    def _check_columns(self, names: list[str], which: int) -> None:
        missing = [name for name in self.columns or () if name not in names]
        if missing:
            raise KeyError(f"{self.paths[which]} has no column {missing}; it has {names}")

    def count(self) -> int:
        return int(self._starts[-1])

    def load(self, row: int) -> Any:
        which = int(np.searchsorted(self._starts, row, side="right")) - 1
        inner = row - int(self._starts[which])
        return {name: column[inner] for name, column in self._group(which).items()}

    def _group(self, number: int) -> dict[str, Any]:
        kept = self._cache.get()
        found = kept.get(number)
        if found is None:
            which, group = self._groups[number]
            file, rows = self._files[which].get()
            name = f"{self.paths[which]}, row group {group}"
            try:
                table = file.read_row_group(group, columns=self.columns)
                found = {name: _column(table.column(name)) for name in table.column_names}
            except PYARROW_ERRORS as error:
                raise CorruptRecord(f"{name} is damaged: {error}") from error
            if table.num_rows != rows[group]:
                raise CorruptRecord(
                    f"{name} is damaged: it has {table.num_rows} rows instead of {rows[group]}"
                )
            kept[number] = found
            while len(kept) > GROUPS_KEPT:
                kept.popitem(last=False)
        return found


def _column(column: Any) -> Any:
    """A column's values by row."""
    pa = require("pyarrow", extra="parquet")
    array = column.combine_chunks()
    if isinstance(array.type, pa.FixedShapeTensorType):
        return array.to_numpy_ndarray()
    if pa.types.is_primitive(array.type) and not array.null_count:
        return array.to_numpy(zero_copy_only=False)
    is_list = pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
    if is_list and pa.types.is_primitive(array.type.value_type):
        return _Lists(array)
    return array.to_pylist()


class _Lists:
    """Lists of numbers: each a slice of one flat array."""

    def __init__(self, array: Any):
        self.flat = array.values.to_numpy(zero_copy_only=False)
        self.ends = array.offsets.to_numpy()
        self.valid = array.is_valid().to_numpy(zero_copy_only=False)

    def __getitem__(self, row: int) -> np.ndarray | None:
        return self.flat[self.ends[row] : self.ends[row + 1]] if self.valid[row] else None


def _open(path: Path) -> tuple[Any, list[int]]:
    """The open file, and the number of rows in each of its groups."""
    pq = require("pyarrow.parquet", extra="parquet")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        # Not mapped: a mapped file that is cut short causes SIGBUS.
        file = pq.ParquetFile(path, memory_map=False, page_checksum_verification=True)
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    except PYARROW_ERRORS as error:
        raise CorruptRecord(f"{path} is not a whole Parquet file: {error}") from error
    rows = [group.num_rows for group in groups]
    # The footer has no checksum, but it holds the number of rows more than once.
    if sum(rows) != file.metadata.num_rows or min(rows, default=0) < 0:
        raise CorruptRecord(
            f"{path} is damaged: its footer says {file.metadata.num_rows} rows in total, but "
            f"{rows} in its groups"
        )
    return file, rows


def write_parquet(
    ds: DataFlow | Iterable[Any],
    path: str | os.PathLike[str],
    *,
    rows_per_group: int = ROWS_PER_GROUP,
    compression: str = "zstd",
) -> Path:
    """Writes a flow's datapoints as rows; a list's components are the columns '0', '1', ...

    One-dimensional arrays are stored as lists of any length, others as tensors of one shape.
    With page checksums; atomic.
    """
    pa = require("pyarrow", extra="parquet")
    pq = require("pyarrow.parquet", extra="parquet")
    path = Path(path)
    rows = iter(track(as_flow(ds), description=f"writing {path}"))
    with atomic_path(path) as temporary:
        writer = None
        try:
            while block := [components(row) for row in islice(rows, rows_per_group)]:
                table = _table(pa, block, None if writer is None else writer.schema)
                if writer is None:
                    writer = pq.ParquetWriter(
                        temporary, table.schema, compression=compression, write_page_checksum=True
                    )
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()
        if writer is None:
            raise ValueError(f"{path}: the flow is empty, but a Parquet file needs its columns")
    return path


def _table(pa: Any, block: list[dict[str, Any]], schema: Any) -> Any:
    arrays = {}
    names = list(block[0]) if schema is None else schema.names
    for number, row in enumerate(block):
        if row.keys() != set(names):
            raise ValueError(f"row {number}: expected components {names}, received {list(row)}")
    for name in names:
        kind = None if schema is None else schema.field(name).type
        arrays[name] = _stored_column(pa, [row[name] for row in block], kind, name)
    return pa.table(arrays)


def _stored_column(pa: Any, values: list[Any], kind: Any, name: str) -> Any:
    first = values[0]
    if isinstance(first, np.ndarray) and first.ndim == 1:
        # Lists of any length, since later ones may be longer.
        kind = kind or pa.list_(pa.from_numpy_dtype(first.dtype))
        return pa.array([np.asarray(x) for x in values], kind)
    if isinstance(first, np.ndarray) and first.ndim:
        shapes = sorted({f"{getattr(x, 'dtype', '?')} {np.shape(x)}" for x in values})
        made = None
        if len(shapes) == 1 and first.size:
            stacked = np.ascontiguousarray(np.stack(values))
            made = pa.FixedShapeTensorArray.from_numpy_ndarray(stacked)
        if made is None or kind not in (None, made.type):
            raise ValueError(
                f"component {name!r}: expected arrays of one shape and dtype"
                f"{f', {kind}' if kind else ''}, received {', '.join(shapes)}"
            )
        return made
    if isinstance(first, np.generic) or (isinstance(first, np.ndarray) and not first.ndim):
        return pa.array(np.asarray(values), kind)
    return pa.array(values, kind)


FORMAT = Format(
    "Parquet",
    lambda path, on_error: Stored("Parquet", ParquetData(path, on_error=on_error)),
    is_head=lambda head: head.startswith(b"PAR1"),
    writers={".parquet": write_parquet},
)
