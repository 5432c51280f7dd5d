"""TFRecord files as a source."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.dataflow.base import FlowIterator, IndexIterator, Pass
from towerpack.dataflow.format.corrupt import CorruptRecord
from towerpack.dataflow.format.file_list import Paths, file_list
from towerpack.dataflow.format.record_source import OnError, RecordSource
from towerpack.dataflow.format.tfrecord_file import TFRecordFile, is_gzip, iterate_gzip, write_index
from towerpack.dataflow.iterators import ReplayIterator

Decoder = Callable[[Any, str], Any]
"""Makes a datapoint of a record's bytes; its second argument is the record's name, for errors."""


class TFRecordData(RecordSource):
    """The records of one or more TFRecord files: bytes, or what `decoder(record, name)` makes.

    `paths` is a file, a pattern ('train-*'), or a list; all files together are one sequence, and
    `shuffle` mixes them all, not file by file. Random access, checksums compared, every record once
    per pass. The index beside a file is used if there is one; a file that is shorter or longer than
    its index says is an error. Otherwise the file's lengths are read once, here, which
    `build_index(path)` saves the next time.

    GZIP-compressed files have no random access, and cannot be shuffled globally: they are read in
    order, with `LocallyShuffleData` or a conversion (`towerpack data convert`) as the ways out.
    `size` gives them a length.
    """

    def __init__(
        self,
        paths: Paths,
        shuffle: bool = False,
        decoder: Decoder | None = None,
        *,
        size: int | None = None,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        super().__init__(shuffle, seed, on_error)
        self.paths, self.decoder = file_list(paths), decoder
        packed = [is_gzip(path) for path in self.paths]
        self.random_access = not any(packed)
        self._size = size
        if self.random_access:
            self.files = [TFRecordFile(path) for path in self.paths]
            if on_error == "raise":
                for file in self.files:
                    file.check_size()
            self._starts = np.cumsum([0, *map(len, self.files)])
            self._check_size(size)
        elif not all(packed):
            raise ValueError(f"expected files that are all GZIP or all not, received {self.paths}")
        elif shuffle:
            raise ValueError(
                f"{self.paths[0]} is GZIP-compressed, so it cannot be read in a random order; use "
                "LocallyShuffleData over it, or convert it: towerpack data convert"
            )

    def _check_size(self, size: int | None) -> None:
        if size is not None and size != self.count():
            raise ValueError(f"expected {size} records, {self.paths} have {self.count()}")

    def count(self) -> int:
        if self.random_access:
            return int(self._starts[-1])
        if self._size is None:
            raise TypeError(
                "a GZIP-compressed file does not say how many records it has: pass size"
            )
        return self._size

    def load(self, row: int) -> Any:
        which = int(np.searchsorted(self._starts, row, side="right")) - 1
        file, number = self.files[which], row - int(self._starts[which])
        return self._decoded(file.record(number), f"{file.path}, record {number}")

    def _decoded(self, record: Any, name: str) -> Any:
        return bytes(record) if self.decoder is None else self.decoder(record, name)

    def iterator(self, pass_: Pass) -> FlowIterator:
        return IndexIterator(self, pass_) if self.random_access else ReplayIterator(self, pass_)

    def generate(self) -> Iterable[Any]:
        for path in self.paths:
            for number, record in enumerate(iterate_gzip(path)):
                try:
                    yield self._decoded(bytearray(record), f"{path}, record {number}")
                except CorruptRecord as error:
                    if self.on_error == "raise":
                        raise
                    self._note_skip(error)


def build_index(path: str | Path) -> int:
    """Writes the index of a TFRecord file beside it; gives the number of records.

    For files that other programs wrote: the next `TFRecordData` then opens at once, and finds out
    if the file was cut. An older index is replaced.
    """
    file = TFRecordFile(path, use_index=False)
    write_index(path, file.starts, file.size)
    return len(file)
