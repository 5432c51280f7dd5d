"""Which format a file or directory has, told by its content, and the flow of what is in it."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

from towerpack.core.codec import MAGIC
from towerpack.core.optional import require
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.format import lmdb_file
from towerpack.dataflow.format.arrayrecord import ArrayRecordData
from towerpack.dataflow.format.caffe_lmdb import CaffeLMDB
from towerpack.dataflow.format.corrupt import CorruptRecord
from towerpack.dataflow.format.csv_data import CSVData
from towerpack.dataflow.format.example_features import decode_any_example
from towerpack.dataflow.format.hdf5 import H5PY_ERRORS, HDF5Data, dataset_names
from towerpack.dataflow.format.lmdb_data import LMDBData
from towerpack.dataflow.format.numpy_files import NumpyColumns, NumpyFiles, load_arrays
from towerpack.dataflow.format.parquet import ParquetData
from towerpack.dataflow.format.record_source import OnError
from towerpack.dataflow.format.stored_record import PICKLE_START, decode_record
from towerpack.dataflow.format.tar import TarData
from towerpack.dataflow.format.tfrecord_data import TFRecordData
from towerpack.dataflow.format.tfrecord_file import GZIP_START, masked_crc
from towerpack.dataflow.from_arrays import DataFromArrays
from towerpack.dataflow.serialize.lmdb_serializer import LMDBRecords
from towerpack.dataflow.serialize.numpy_serializer import NumpyRecords

HEAD = 512  # bytes: enough for every mark below
ARRAY_RECORD_ENDINGS = (".arrayrecord", ".array_record", ".riegeli")


class Stored(NamedTuple):
    """What a path holds: the format in words, and its datapoints in the stored order."""

    format: str
    flow: DataFlow


def open_stored(path: str | Path, on_error: OnError = "raise") -> Stored:
    """The datapoints stored at a path, whatever the format; ValueError if it is none of ours."""
    path = Path(path).expanduser()
    if path.is_dir():
        return _open_directory(path, on_error)
    with open(path, "rb") as file:
        head = file.read(HEAD)
    if len(head) >= 20 and struct.unpack_from("<I", head, lmdb_file.PAGE_HEADER)[0] == (
        lmdb_file.MAGIC
    ):
        return _open_lmdb(path, on_error)
    if head.startswith(b"\x89HDF\r\n\x1a\n"):
        return _open_hdf5(path)
    if head.startswith(b"PAR1"):
        return Stored("Parquet", ParquetData(path, on_error=on_error))
    if head.startswith(b"PK"):
        return _open_npz(path, on_error)
    if head.startswith(b"\x93NUMPY"):
        return Stored("npy", NumpyFiles([path]))
    if head[257:262] == b"ustar":
        return Stored("tar of samples", TarData(path, on_error=on_error))
    if head.startswith(GZIP_START) or _is_tfrecord(head):
        return _open_tfrecord(path, on_error)
    if path.suffix.lower() in ARRAY_RECORD_ENDINGS:
        return Stored(
            "ArrayRecord", ArrayRecordData(path, decoder=_decode_if_ours, on_error=on_error)
        )
    if path.suffix.lower() in (".csv", ".tsv"):
        delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
        return Stored("CSV", CSVData(path, types=str, delimiter=delimiter, on_error=on_error))
    raise ValueError(
        f"{path} is of no known format: expected LMDB, TFRecord, HDF5, npz, npy, Parquet, tar, "
        f"ArrayRecord ({', '.join(ARRAY_RECORD_ENDINGS)}) or CSV (.csv, .tsv), received a file "
        f"that begins with {head[:8].hex(' ')}"
    )


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
    # The first or the last: one of them may be damaged.
    ends = [_record(raw, row) for row in {0, raw.count() - 1} if raw.count()]
    if any(record.startswith((MAGIC, PICKLE_START)) for record in ends):
        return Stored("LMDB of datapoints", LMDBRecords(path, shuffle=False, on_error=on_error))
    if any(ends) and _is_datum(path):
        return Stored("LMDB of Caffe", CaffeLMDB(path, shuffle=False, on_error=on_error))
    return Stored("LMDB of raw records", raw)


def _record(raw: LMDBData, row: int) -> bytes:
    """The bytes of a record, none if it is damaged."""
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


def _open_hdf5(path: Path) -> Stored:
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


def _open_npz(path: Path, on_error: OnError) -> Stored:
    arrays = load_arrays(path)
    if set(arrays) == {"records", "starts", "ends"}:
        return Stored("npz of datapoints", NumpyRecords(path, shuffle=False, on_error=on_error))
    lengths = {array.shape[:1] for array in arrays.values()}
    if len(lengths) == 1 and () not in lengths:
        return Stored("npz of columns", DataFromArrays(arrays))
    return Stored("npz", NumpyFiles([path]))


def _is_tfrecord(head: bytes) -> bool:
    return len(head) >= 12 and masked_crc(head[:8]) == struct.unpack_from("<I", head, 8)[0]


def _open_tfrecord(path: Path, on_error: OnError) -> Stored:
    flow = TFRecordData(path, on_error=on_error)
    first = next(iter(TFRecordData(path, on_error="skip")), b"")
    ours = first.startswith((MAGIC, PICKLE_START))
    flow.decoder = decode_record if ours else decode_any_example
    return Stored("TFRecord of datapoints" if ours else "TFRecord of tf.train.Example", flow)


def _decode_if_ours(record: bytes, name: str) -> Any:
    if record.startswith((MAGIC, PICKLE_START)):
        return decode_record(bytearray(record), name)
    return record
