"""All formats in one table: recognize what a path holds and read it, or write a flow by its ending.

A new format needs one entry in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from towerpack.core.optional import require
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.format.arrayrecord import ArrayRecordData, write_arrayrecord
from towerpack.dataflow.format.caffe import CaffeLMDB
from towerpack.dataflow.format.example import decode_any_example, write_examples
from towerpack.dataflow.format.files import CorruptRecord
from towerpack.dataflow.format.hdf5 import H5PY_ERRORS, HDF5Data, HDF5Serializer, dataset_names
from towerpack.dataflow.format.lmdb import LMDBData, LMDBRecords, LMDBSerializer, is_lmdb
from towerpack.dataflow.format.numpy_files import (
    RECORD_ARRAYS,
    NumpyColumns,
    NumpyFiles,
    NumpyRecords,
    NumpySerializer,
    load_arrays,
)
from towerpack.dataflow.format.parquet import ParquetData, write_parquet
from towerpack.dataflow.format.records import OWN_STARTS, OnError, components, decode_record
from towerpack.dataflow.format.tar import TarData, write_tar
from towerpack.dataflow.format.text import CSVData
from towerpack.dataflow.format.tfrecord import (
    GZIP_START,
    TFRecordData,
    TFRecordSerializer,
    is_tfrecord,
)
from towerpack.dataflow.from_arrays import DataFromArrays

HEAD = 512  # bytes: enough to recognize every format


class Stored(NamedTuple):
    """What a path holds: the format in words, and its datapoints in the stored order."""

    format: str
    flow: DataFlow


class Format(NamedTuple):
    """How a format is recognized (by a file's first bytes or its ending), read and written."""

    name: str
    is_head: Callable[[bytes], bool] | None
    open: Callable[[Path, OnError], Stored]
    endings: tuple[str, ...] = ()  # for formats that cannot be recognized by their first bytes
    writers: Mapping[str, Callable[[DataFlow, Path], Any]] = {}


def open_stored(path: str | Path, on_error: OnError = "raise") -> Stored:
    """Reads the datapoints stored at a path in any known format; ValueError for other files."""
    path = Path(path).expanduser()
    if path.is_dir():
        return _open_directory(path, on_error)
    with open(path, "rb") as file:
        head = file.read(HEAD)
    for format_ in FORMATS:
        if format_.is_head is not None and format_.is_head(head):
            return format_.open(path, on_error)
    for format_ in FORMATS:
        if path.suffix.lower() in format_.endings:
            return format_.open(path, on_error)
    names = [f.name + (f" ({', '.join(f.endings)})" if f.endings else "") for f in FORMATS]
    raise ValueError(
        f"{path} has an unknown format: expected {', '.join(names[:-1])} or {names[-1]}, received "
        f"a file that begins with {head[:8].hex(' ')}"
    )


def save_stored(flow: DataFlow, path: str | Path, examples: bool = False) -> None:
    """Writes one epoch of a flow in the format of `path`'s ending.

    `.lmdb`, `.tfrecord`, `.npz` and `.arrayrecord` hold any datapoint, exactly; `.h5` and
    `.parquet` those of one shape; `.tar` dicts by ending. With `examples`, a `.tfrecord` holds
    `tf.train.Example` records, which TensorFlow parses.
    """
    path = Path(path)
    writers = {ending: writer for f in FORMATS for ending, writer in f.writers.items()}
    writer = writers.get(path.suffix.lower())
    if writer is None:
        raise ValueError(f"expected a path ending in one of {sorted(writers)}, received {path}")
    if examples:
        if writer is not TFRecordSerializer.save:
            raise ValueError(f"only a .tfrecord file holds examples, received {path}")
        writer = write_examples
    writer(flow, path)


def _open_directory(path: Path, on_error: OnError) -> Stored:
    if (path / "data.mdb").is_file():
        return _open_lmdb(path, on_error)
    if any(path.glob("*.npz")):
        return Stored("npz files", NumpyFiles(path, on_error=on_error))
    if any(path.glob("*.npy")):
        return Stored("npy columns", NumpyColumns(path))
    raise ValueError(f"{path} has neither data.mdb nor .npz or .npy files")


def _open_lmdb(path: Path, on_error: OnError) -> Stored:
    raw = LMDBData(path, shuffle=False, on_error=on_error)
    # Both the first and the last record, since one of them may be damaged.
    ends = [_record(raw, row) for row in {0, raw.count() - 1} if raw.count()]
    if any(record.startswith(OWN_STARTS) for record in ends):
        return Stored("LMDB of datapoints", LMDBRecords(path, shuffle=False, on_error=on_error))
    if any(ends) and _is_datum(path):
        return Stored("LMDB of Caffe", CaffeLMDB(path, shuffle=False, on_error=on_error))
    return Stored("LMDB of raw records", raw)


def _record(raw: LMDBData, row: int) -> bytes:
    """The bytes of a record; empty if it is damaged."""
    try:
        return raw.load(row)[1]
    except CorruptRecord:
        return b""


def _is_datum(path: Path) -> bool:
    try:
        CaffeLMDB(path, shuffle=False).load(0)
    except (CorruptRecord, ImportError):
        return False
    return True


def _open_hdf5(path: Path, on_error: OnError) -> Stored:
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


def _save_hdf5(flow: DataFlow, path: Path) -> None:
    first = next(iter(flow), None)
    if first is None:
        raise ValueError("the flow is empty")
    HDF5Serializer.save(flow, path, list(components(first)))


def _open_npz(path: Path, on_error: OnError) -> Stored:
    arrays = load_arrays(path)
    if set(arrays) == RECORD_ARRAYS:
        return Stored("npz of datapoints", NumpyRecords(path, shuffle=False, on_error=on_error))
    lengths = {array.shape[:1] for array in arrays.values()}
    if len(lengths) == 1 and () not in lengths:
        return Stored("npz of columns", DataFromArrays(arrays))
    return Stored("npz", NumpyFiles([path]))


def _open_tfrecord(path: Path, on_error: OnError) -> Stored:
    flow = TFRecordData(path, on_error=on_error)
    first = next(iter(TFRecordData(path, on_error="skip")), b"")
    ours = first.startswith(OWN_STARTS)
    flow.decoder = decode_record if ours else decode_any_example
    return Stored("TFRecord of datapoints" if ours else "TFRecord of tf.train.Example", flow)


def _open_arrayrecord(path: Path, on_error: OnError) -> Stored:
    flow = ArrayRecordData(path, decoder=_decode_if_ours, on_error=on_error)
    return Stored("ArrayRecord", flow)


def _decode_if_ours(record: bytes, name: str) -> Any:
    return decode_record(bytearray(record), name) if record.startswith(OWN_STARTS) else record


def _open_csv(path: Path, on_error: OnError) -> Stored:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    return Stored("CSV", CSVData(path, types=str, delimiter=delimiter, on_error=on_error))


FORMATS = (
    Format("LMDB", is_lmdb, _open_lmdb, writers={".lmdb": LMDBSerializer.save}),
    Format(
        "TFRecord",
        lambda head: head.startswith(GZIP_START) or is_tfrecord(head),
        _open_tfrecord,
        writers=dict.fromkeys((".tfrecord", ".tfrecords"), TFRecordSerializer.save),
    ),
    Format(
        "HDF5",
        lambda head: head.startswith(b"\x89HDF\r\n\x1a\n"),
        _open_hdf5,
        writers=dict.fromkeys((".h5", ".hdf5"), _save_hdf5),
    ),
    Format(
        "npz",
        lambda head: head.startswith(b"PK"),
        _open_npz,
        writers={".npz": NumpySerializer.save},
    ),
    Format(
        "npy",
        lambda head: head.startswith(b"\x93NUMPY"),
        lambda path, on_error: Stored("npy", NumpyFiles([path])),
    ),
    Format(
        "Parquet",
        lambda head: head.startswith(b"PAR1"),
        lambda path, on_error: Stored("Parquet", ParquetData(path, on_error=on_error)),
        writers={".parquet": write_parquet},
    ),
    Format(
        "tar",
        lambda head: head[257:262] == b"ustar",
        lambda path, on_error: Stored("tar of samples", TarData(path, on_error=on_error)),
        writers={".tar": write_tar},
    ),
    Format(
        "ArrayRecord",
        None,
        _open_arrayrecord,
        endings=(".arrayrecord", ".array_record", ".riegeli"),
        writers={".arrayrecord": write_arrayrecord},
    ),
    Format("CSV", None, _open_csv, endings=(".csv", ".tsv")),
)
