"""LMDB databases as sources."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core.codec import MAGIC, decode
from towerpack.dataflow.blame import name_of
from towerpack.dataflow.format.corrupt import CorruptRecord
from towerpack.dataflow.format.lmdb_file import LMDBFile
from towerpack.dataflow.format.record_source import OnError, RecordSource
from towerpack.dataflow.format.stored_pickle import read_pickle
from towerpack.dataflow.map import MapData

KEYS_RECORD = b"__keys__"  # where serializers store the order of the records


class LMDBData(RecordSource):
    """The records of an LMDB database as `[key, value]`, both bytes.

    Random access; every record once per pass. `keys` says which and in which order: a list of keys,
    or a pattern like '{:0>8d}' that is filled with 0, 1, 2, ... as long as there is such a key. By
    default the database's `__keys__` record says it, else all keys come in LMDB's own order.

    The file is read by `LMDBFile`: a truncated one is an error that names the record, never SIGBUS.
    """

    def __init__(
        self,
        path: str | Path,
        shuffle: bool = False,
        keys: Iterable[bytes | str] | str | None = None,
        *,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        super().__init__(shuffle, seed, on_error)
        self.database = LMDBFile(path)
        self._records = self._chosen(keys)

    @property
    def path(self) -> Path:
        return self.database.path

    def _chosen(self, keys: Iterable[bytes | str] | str | None) -> np.ndarray:
        """The numbers of the records, in the order in which they come."""
        database = self.database
        if isinstance(keys, str):
            found: list[int] = []
            table = database.numbers()
            while (number := table.get(keys.format(len(found)).encode())) is not None:
                found.append(number)
            if not found:
                raise KeyError(f"{self.path} has no key {keys.format(0)!r}")
            return np.array(found, np.int64)
        if keys is None:
            index = database.find(KEYS_RECORD) if len(database) else None
            if index is None:
                return np.arange(len(database))
            keys = _stored_keys(database.value(index), f"{self.path}, record {KEYS_RECORD!r}")
            missing: type[Exception] = CorruptRecord  # the database contradicts itself
        else:
            missing = KeyError
        table = database.numbers()
        wanted = [key.encode() if isinstance(key, str) else bytes(key) for key in keys]
        for key in wanted:
            if key not in table:
                raise missing(f"{self.path} has no key {key!r}")
        return np.array([table[key] for key in wanted], np.int64)

    def count(self) -> int:
        return len(self._records)

    def load(self, row: int) -> Any:
        number = self._records.item(row)
        return [self.database.key(number), self.database.value_bytes(number)]

    def where(self, row: int) -> str:
        """How messages call a record."""
        return f"{self.path}, key {self.database.key(int(self._records[row]))!r}"


def _stored_keys(raw: bytearray, name: str) -> list[bytes]:
    stored = decode(raw) if raw[: len(MAGIC)] == MAGIC else read_pickle(raw, name)
    if isinstance(stored, np.ndarray):
        stored = stored.tolist()
    if not isinstance(stored, list) or not all(isinstance(key, bytes | str) for key in stored):
        raise CorruptRecord(f"{name} is no list of keys")
    return stored


class LMDBDataDecoder(MapData):
    """The datapoints that `decoder(key, value)` makes of the records; None drops one.

    Keeps random access and order.
    """

    def __init__(self, lmdb_data: LMDBData, decoder: Callable[[bytes, bytes], Any]):
        if not callable(decoder):
            raise TypeError(f"expected a function of key and value, received {decoder!r}")
        super().__init__(lmdb_data, functools.partial(_apply, decoder))
        self.decoder = decoder

    def label(self) -> str:
        return f"{type(self).__name__}({name_of(self.decoder)})"


def _apply(decoder: Callable[[bytes, bytes], Any], datapoint: list[bytes]) -> Any:
    return decoder(*datapoint)
