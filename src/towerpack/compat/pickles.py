"""The files in which tensorpack pickled datapoints, read without executing anything.

`LMDBSerializer` and `TFRecordSerializer` reject the pickles that tensorpack's serializers of the
same names wrote. These readers accept those that hold only plain data: lists, tuples, dicts, sets,
numbers, text and numpy arrays. Everything else raises `UnsafePickle`. Convert a file once:

    LMDBSerializer.save(load_lmdb("old.lmdb"), "new.lmdb")
"""

from __future__ import annotations

import os
from typing import Any

from towerpack.dataflow.format.files import Name, Paths, name_of
from towerpack.dataflow.format.lmdb import LMDBRecords
from towerpack.dataflow.format.plain_pickle import read_pickle
from towerpack.dataflow.format.records import PICKLE_START, OnError, decode_record
from towerpack.dataflow.format.tfrecord import TFRecordData


def decode_pickle(record: Any, name: Name = "the record") -> Any:
    """The plain data in a record that tensorpack pickled, or that towerpack wrote.

    >>> import pickle
    >>> decode_pickle(pickle.dumps([1, "a"]))
    [1, 'a']
    """
    if bytes(record[: len(PICKLE_START)]) != PICKLE_START:
        return decode_record(record, name)
    return read_pickle(record, name_of(name))


class PickledLMDB(LMDBRecords):
    """The datapoints that tensorpack's `LMDBSerializer` stored. Random access, like `LMDBData`."""

    @staticmethod
    def decode(record: Any, name: Name) -> Any:
        return decode_pickle(record, name)


def load_lmdb(
    path: str | os.PathLike[str],
    shuffle: bool = False,
    *,
    seed: int = 0,
    on_error: OnError = "raise",
) -> PickledLMDB:
    """The datapoints in an LMDB file of tensorpack as a flow with random access."""
    return PickledLMDB(path, shuffle, seed=seed, on_error=on_error)


def lmdb_keys(path: str | os.PathLike[str]) -> list[bytes]:
    """The keys that tensorpack listed in an LMDB file, for `LMDBData(path, keys=...)`."""
    flow = PickledLMDB(path)
    return [flow.key(row) for row in range(flow.count())]


def load_tfrecord(
    paths: Paths,
    size: int | None = None,
    *,
    shuffle: bool = False,
    seed: int = 0,
    on_error: OnError = "raise",
) -> TFRecordData:
    """The datapoints in TFRecord files of tensorpack as a flow with random access."""
    return TFRecordData(paths, shuffle, decode_pickle, size=size, seed=seed, on_error=on_error)
