"""Datapoints from stored bytes: towerpack's codec, or what tensorpack pickled."""

from __future__ import annotations

from typing import Any

from towerpack.core.codec import MAGIC, DecodeError, decode
from towerpack.dataflow.format.corrupt import CorruptRecord
from towerpack.dataflow.format.file_at import Name, name_of
from towerpack.dataflow.format.stored_pickle import read_pickle

PICKLE_START = b"\x80"  # the first opcode of protocol 2 and later


def decode_record(record: Any, name: Name = "the record") -> Any:
    """The datapoint; `CorruptRecord` with `name` if the record is damaged.

    Records in towerpack's codec carry a checksum. Records that tensorpack pickled are read without
    executing anything, as far as they hold plain data and arrays. Arrays are writable if `record`
    is.
    """
    head = bytes(record[: len(MAGIC)])
    if head.startswith(PICKLE_START):
        return read_pickle(record, name_of(name))
    try:
        return decode(record)
    except DecodeError as error:
        raise CorruptRecord(f"{name_of(name)}: {error}") from error
