"""ArrayRecord files, read and written: records with random access and checksums."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core import codec
from towerpack.core.optional import require
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.format.files import CorruptRecord, Paths, PerProcess, atomic_path, file_list
from towerpack.dataflow.format.records import (
    OWN_STARTS,
    Format,
    OnError,
    RecordSource,
    Stored,
    decode_record,
    encode_records,
)

MODULE = "array_record.python.array_record_module"
RANDOM_ACCESS = "readahead_buffer_size:0,max_parallelism:0"  # the library's advice for it
ONE_BY_ONE = "group_size:1"  # compresses each record separately, so that each is read alone


class ArrayRecordData(RecordSource):
    """The records of one or more ArrayRecord files: bytes, or what `decoder(record, name)` makes.

    `paths` is a file, a pattern or a list; `shuffle` mixes the records of all files. Random access;
    every record once per epoch.
    """

    def __init__(
        self,
        paths: Paths,
        shuffle: bool = False,
        decoder: Callable[[bytes, str], Any] | None = None,
        *,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        super().__init__(shuffle, seed, on_error)
        self.paths, self.decoder = file_list(paths), decoder
        self._readers = [PerProcess(functools.partial(_open, path)) for path in self.paths]
        counts = [reader.get().num_records() for reader in self._readers]
        self._starts = np.cumsum([0, *counts])

    def count(self) -> int:
        return int(self._starts[-1])

    def load(self, row: int) -> Any:
        which = int(np.searchsorted(self._starts, row, side="right")) - 1
        number = row - int(self._starts[which])
        name = f"{self.paths[which]}, record {number}"
        try:
            (record,) = self._readers[which].get().read([number])
        except (RuntimeError, ValueError, IndexError) as error:
            self._readers[which].drop()  # the library's reader is unusable after an error
            raise CorruptRecord(f"{name} is damaged: {error}") from error
        return record if self.decoder is None else self.decoder(record, name)


def _open(path: Path) -> Any:
    module = require(MODULE, extra="arrayrecord")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        reader = module.ArrayRecordReader(str(path), RANDOM_ACCESS)
    except (RuntimeError, ValueError) as error:
        raise CorruptRecord(f"{path} is not a whole ArrayRecord file: {error}") from error
    if not reader.ok():  # without this check a truncated file would appear empty
        raise CorruptRecord(
            f"{path} is not a whole ArrayRecord file: its end is missing or damaged"
        )
    return reader


def write_arrayrecord(
    ds: DataFlow | Iterable[Any],
    path: str | os.PathLike[str],
    encoder: Callable[[Any], bytes] = codec.encode,
) -> Path:
    """Writes each datapoint as a record, in towerpack's codec by default; atomic."""
    module = require(MODULE, extra="arrayrecord")
    path = Path(path)
    with atomic_path(path) as temporary:
        writer = module.ArrayRecordWriter(str(temporary), ONE_BY_ONE)
        try:
            for record in encode_records(ds, path, encoder):
                writer.write(record)
        finally:
            writer.close()
    return path


def _open_stored(path: Path, on_error: OnError) -> Stored:
    flow = ArrayRecordData(path, decoder=_decode_if_ours, on_error=on_error)
    return Stored("ArrayRecord", flow)


def _decode_if_ours(record: bytes, name: str) -> Any:
    return decode_record(bytearray(record), name) if record.startswith(OWN_STARTS) else record


FORMAT = Format(
    "ArrayRecord",
    _open_stored,
    endings=(".arrayrecord", ".array_record", ".riegeli"),
    writers={".arrayrecord": write_arrayrecord},
)
