"""Flows stored in LMDB."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core import codec
from towerpack.core.optional import require
from towerpack.core.progress import track
from towerpack.dataflow.base import DataFlow, as_flow
from towerpack.dataflow.format.atomic_path import atomic_path
from towerpack.dataflow.format.corrupt import CorruptRecord
from towerpack.dataflow.format.lmdb_data import KEYS_RECORD, LMDBData
from towerpack.dataflow.format.record_source import OnError
from towerpack.dataflow.format.stored_record import decode_record

FIRST_MAP = 1 << 30  # LMDB wants a limit in advance; the file itself only grows as needed
UNCOMMITTED = 1 << 28  # bytes of records in one transaction: LMDB holds their pages in memory
PAGE_WASTE = 1 << 16  # more than a record can take beyond twice its size: page ends, tree pages


class LMDBSerializer:
    """A flow's datapoints in an LMDB file, in towerpack's codec, with a checksum each."""

    @staticmethod
    def save(
        df: DataFlow | Iterable[Any], path: str | os.PathLike[str], write_frequency: int = 5000
    ) -> None:
        """Writes one pass of the flow; keys are '00000000', '00000001', ...

        `path` is the file to make, or an existing directory to make `data.mdb` in. It appears when
        it is whole; an existing one is an error. `write_frequency` is how many datapoints make one
        transaction at most.
        """
        if write_frequency < 1:
            raise ValueError(f"expected a positive write_frequency, received {write_frequency}")
        path = Path(path)
        if path.is_dir():
            path = path / "data.mdb"
        if path.exists():
            raise FileExistsError(f"{path} exists; remove it first or choose another name")
        with atomic_path(path) as temporary:
            writer = _Writer(temporary, write_frequency)
            try:
                count = 0
                for datapoint in track(as_flow(df), description=f"writing {path}"):
                    try:
                        record = codec.encode(datapoint)
                    except codec.EncodeError as error:
                        error.add_note(f"in datapoint {count}")
                        raise
                    writer.put(f"{count:08}".encode(), record)
                    count += 1
                keys = np.array([f"{i:08}".encode() for i in range(count)], np.bytes_)
                writer.put(KEYS_RECORD, codec.encode(keys))
                writer.commit()
            finally:
                writer.close()

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        shuffle: bool = False,
        *,
        seed: int = 0,
        on_error: OnError = "raise",
    ) -> LMDBRecords:
        """The stored datapoints as a flow with random access."""
        return LMDBRecords(path, shuffle, seed=seed, on_error=on_error)


class LMDBRecords(LMDBData):
    """The datapoints that `LMDBSerializer` stored, and, read without executing, tensorpack's.

    Random access; every datapoint once per pass; checksums compared.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        shuffle: bool = False,
        *,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        super().__init__(Path(path), shuffle, seed=seed, on_error=on_error)
        database = self.database
        ours = len(database) and database.value(0).startswith(codec.MAGIC)
        if ours and database.find(KEYS_RECORD) is None:
            raise CorruptRecord(
                f"{self.path} has no record {KEYS_RECORD!r}, which LMDBSerializer writes last: the "
                "file is damaged"
            )

    def load(self, row: int) -> Any:
        # The bytearray, not bytes: so the arrays, which are views of it, are writable.
        number = self._records.item(row)
        return decode_record(self.database.value(number), lambda: self.where(row))


class _Writer:
    """Puts records into a new LMDB file, and makes it larger before it is full.

    After a MapFullError the whole transaction would have to be repeated, so it must not happen.
    """

    def __init__(self, path: Path, write_frequency: int):
        lmdb = require("lmdb", extra="lmdb")
        self.write_frequency = write_frequency
        self.map_size = FIRST_MAP
        # No syncs on the way: the file is synced once, when it is whole. No lock: nobody knows it.
        self.environment = lmdb.open(
            str(path), subdir=False, map_size=FIRST_MAP, lock=False, sync=False, meminit=False
        )
        self._begin()

    def _begin(self) -> None:
        info, stat = self.environment.info(), self.environment.stat()
        self.used = (info["last_pgno"] + 1) * stat["psize"]
        self.waiting = self.records = 0
        self.transaction = self.environment.begin(write=True)

    def put(self, key: bytes, record: bytes) -> None:
        need = 2 * len(record) + PAGE_WASTE
        if self.records >= self.write_frequency or self.waiting + need > UNCOMMITTED:
            self.commit()
        if self.used + self.waiting + need > self.map_size:
            self.commit()
            while self.used + need > self.map_size:
                self.map_size *= 2
            self.map_size *= 2
            self.transaction.abort()
            self.environment.set_mapsize(self.map_size)
            self._begin()
        self.transaction.put(key, record)
        self.waiting += need
        self.records += 1

    def commit(self) -> None:
        self.transaction.commit()
        self._begin()

    def close(self) -> None:
        self.transaction.abort()
        self.environment.close()
