"""Caffe's LMDB databases."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core.optional import require
from towerpack.dataflow.format import proto
from towerpack.dataflow.format.files import CorruptRecord
from towerpack.dataflow.format.images import decode_image
from towerpack.dataflow.format.lmdb import LMDBData, LMDBRecords, LMDBSerializer, is_lmdb
from towerpack.dataflow.format.records import OWN_STARTS, Format, OnError, Stored


class CaffeLMDB(LMDBData):
    """A Caffe LMDB database as `[image, label]`: HxWxC uint8 (BGR, as Caffe stores it) and an int.

    Random access; every record once per epoch. Datums are raw or encoded (JPEG, PNG); those of
    floats give float32. Caffe itself is not needed: `proto` declares the message.
    """

    def load(self, row: int) -> Any:
        _, value = super().load(row)
        return decode_datum(value, self.where(row))


def decode_datum(value: bytes, name: str = "the datum") -> list[Any]:
    """`[image, label]` of a serialized `caffe.Datum`; `CorruptRecord` names a damaged one."""
    message = require("google.protobuf.message", extra=proto.EXTRA)
    try:
        datum = proto.datum_class().FromString(value)
    except message.DecodeError as error:
        raise CorruptRecord(f"{name} is not a caffe.Datum: {error}") from error
    if datum.encoded:
        return [decode_image(datum.data, name), int(datum.label)]
    shape = (datum.channels, datum.height, datum.width)
    if datum.float_data:
        pixels = np.array(datum.float_data, np.float32)
    else:
        pixels = np.frombuffer(datum.data, np.uint8)
    if min(shape) < 0 or pixels.size != math.prod(shape):
        raise CorruptRecord(
            f"{name}: a datum of {shape[0]} channels, {shape[1]}x{shape[2]}, should have "
            f"{math.prod(shape)} values, but has {pixels.size}"
        )
    return [np.ascontiguousarray(pixels.reshape(shape).transpose(1, 2, 0)), int(datum.label)]


def open_lmdb(path: Path, on_error: OnError) -> Stored:
    """Opens an LMDB file by the first bytes of its records."""
    raw = LMDBData(path, on_error=on_error)
    # Both the first and the last record, since one of them may be damaged.
    ends = [_record(raw, row) for row in {0, raw.count() - 1} if raw.count()]
    if any(record.startswith(OWN_STARTS) for record in ends):
        return Stored("LMDB of datapoints", LMDBRecords(path, on_error=on_error))
    if any(ends) and _is_datum(path):
        return Stored("LMDB of Caffe", CaffeLMDB(path, on_error=on_error))
    return Stored("LMDB of raw records", raw)


def _record(raw: LMDBData, row: int) -> bytes:
    """The bytes of a record; empty if it is damaged."""
    try:
        return raw.load(row)[1]
    except CorruptRecord:
        return b""


def _is_datum(path: Path) -> bool:
    try:
        CaffeLMDB(path).load(0)
    except (CorruptRecord, ImportError):
        return False
    return True


LMDB = Format("LMDB", open_lmdb, is_head=is_lmdb, writers={".lmdb": LMDBSerializer.save})
