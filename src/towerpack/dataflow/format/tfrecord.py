"""TFRecord files: framed records with checksums, and an index next to the file.

A record is a length (8 bytes), the checksum of the length, the data, and the checksum of the data,
all little-endian; the checksums are masked CRC-32Cs. TensorFlow reads such a file only from its
beginning. The index holds the place of each record, which allows random access. It also shows where
each record ends, so a damaged length loses only that record.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from towerpack.core import codec
from towerpack.core.checksum import masked_crc
from towerpack.core.files import atomic_file
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.format.files import CorruptRecord, FileAt, Paths, file_list
from towerpack.dataflow.format.records import OnError, RecordSource, decode_record, encode_records
from towerpack.dataflow.iterators import FlowIterator, ReplayIterator

INDEX_SUFFIX = ".index"
GZIP_START = b"\x1f\x8b"
SEARCH_BLOCK = 1 << 20  # bytes searched at once for the next record after a damaged length

_HEADER = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
FRAME = _HEADER.size + _CHECKSUM.size  # what a record takes beyond its data

Decoder = Callable[[Any, str], Any]
"""Makes a datapoint of a record's bytes; its second argument is the record's name, for errors."""


class TFRecordData(RecordSource):
    """The records of one or more TFRecord files: bytes, or what `decoder(record, name)` makes.

    `paths` is a file, a pattern ('train-*') or a list. All files together are one sequence, and
    `shuffle` mixes the records of all files. Random access; checksums are compared; every record
    once per epoch. The index next to a file is used if there is one, and a file that is shorter or
    longer than its index states is an error. Without an index the lengths in the file are read
    once, here; `build_index(path)` saves that the next time.

    GZIP-compressed files are read in order: they have no random access and cannot be shuffled
    globally. Use `LocallyShuffleData`, or convert them (`towerpack data convert`). `size` gives
    them a length.
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
        self._indexable = not any(packed)
        self._size = size
        if self._indexable:
            self.files = [TFRecordFile(path) for path in self.paths]
            if on_error == "raise":
                for file in self.files:
                    file.check_size()
            self._starts = np.cumsum([0, *map(len, self.files)])
            if size is not None and size != self.count():
                raise ValueError(f"expected {size} records, {self.paths} have {self.count()}")
        elif not all(packed):
            raise ValueError(f"expected files that are all GZIP or all not, received {self.paths}")
        elif shuffle:
            raise ValueError(
                f"{self.paths[0]} is GZIP-compressed, so it cannot be read in a random order; use "
                "LocallyShuffleData over it, or convert it: towerpack data convert"
            )

    def count(self) -> int:
        if self._indexable:
            return int(self._starts[-1])
        if self._size is None:
            raise TypeError("the number of records in a GZIP-compressed file is unknown: pass size")
        return self._size

    def load(self, row: int) -> Any:
        which = int(np.searchsorted(self._starts, row, side="right")) - 1
        file, number = self.files[which], row - int(self._starts[which])
        return self._decoded(file.record(number), f"{file.path}, record {number}")

    def _decoded(self, record: Any, name: str) -> Any:
        return bytes(record) if self.decoder is None else self.decoder(record, name)

    def indexable(self) -> bool:
        return self._indexable

    def sequential(self, epoch: Epoch) -> FlowIterator:
        return ReplayIterator(epoch, self._unpacked)

    def _unpacked(self) -> Iterator[Any]:
        for path in self.paths:
            for number, record in enumerate(iterate_gzip(path)):
                try:
                    yield self._decoded(bytearray(record), f"{path}, record {number}")
                except CorruptRecord as error:
                    if self.on_error == "raise":
                        raise
                    self._note_skip(error)


class TFRecordSerializer:
    """A flow's datapoints in a TFRecord file, in towerpack's codec.

    For `tf.train.Example` records, which TensorFlow parses, see `write_examples`.
    """

    @staticmethod
    def save(df: DataFlow | Iterable[Any], path: str | os.PathLike[str]) -> None:
        """Writes one epoch of the flow and an index next to the file; atomic."""
        with write_tfrecord(os.fspath(path)) as writer:
            for record in encode_records(df, path):
                writer.write(record)

    @staticmethod
    def load(
        path: Paths,
        size: int | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        on_error: OnError = "raise",
    ) -> TFRecordData:
        """The stored datapoints as a flow with random access.

        `size` is not needed; if given, it is compared.
        """
        return TFRecordData(path, shuffle, decode_record, size=size, seed=seed, on_error=on_error)


class TFRecordWriter:
    """Writes records to an open file; most callers want `write_tfrecord`."""

    def __init__(self, file: IO[bytes]):
        self.file = file
        self.position = 0
        self.starts: list[int] = []

    def write(self, record: bytes) -> None:
        length = _LENGTH.pack(len(record))
        self.file.write(length + _CHECKSUM.pack(masked_crc(length)))
        self.file.write(record)
        self.file.write(_CHECKSUM.pack(masked_crc(record)))
        self.starts.append(self.position)
        self.position += FRAME + len(record)


@contextlib.contextmanager
def write_tfrecord(path: str | Path, compression: str | None = None) -> Iterator[TFRecordWriter]:
    """Opens a writer of a TFRecord file, which appears, whole, when the block ends.

    An index is written next to the file. With `compression='GZIP'` there is none, and the file can
    only be read from its beginning.
    """
    if compression not in (None, "", "GZIP"):
        raise ValueError(f"expected compression None or 'GZIP', received {compression!r}")
    path = Path(path)
    # The index of an older file at this path would not fit the new one.
    index_path(path).unlink(missing_ok=True)
    with atomic_file(path, "wb") as file:
        if compression:
            with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed:
                yield TFRecordWriter(packed)  # type: ignore[arg-type]
            return
        writer = TFRecordWriter(file)
        yield writer
    _write_index(path, np.array(writer.starts, np.int64), writer.position)


def index_path(path: str | Path) -> Path:
    """The path of a file's index: hidden, so that the pattern `train-*` does not match it."""
    path = Path(path)
    return path.with_name(f".{path.name}{INDEX_SUFFIX}")


def build_index(path: str | Path) -> int:
    """Writes the index of a TFRecord file next to it; returns the number of records.

    For files that other programs wrote: the next `TFRecordData` then opens at once and detects a
    file that was cut. An older index is replaced.
    """
    file = TFRecordFile(path, use_index=False)
    _write_index(path, file.starts, file.size)
    return len(file)


def _write_index(path: str | Path, starts: np.ndarray, size: int) -> None:
    with atomic_file(index_path(path), "wb") as file:
        file.write(codec.encode({"format": "tfrecord", "size": size, "starts": starts}))


def _read_index(path: str | Path) -> tuple[np.ndarray, int] | None:
    """Where each record of a file begins, and the file's size; None if it has no index."""
    place = index_path(path)
    try:
        content = place.read_bytes()
    except FileNotFoundError:
        return None
    try:
        stored = codec.decode(bytearray(content))
    except codec.DecodeError as error:
        raise CorruptRecord(f"the index {place} is damaged ({error}); delete it") from error
    if not isinstance(stored, dict) or stored.get("format") != "tfrecord":
        return None  # the index of another program
    starts: Any = stored.get("starts")
    size = stored.get("size")
    if not isinstance(size, int) or not _is_rising(starts, size):
        raise CorruptRecord(f"the index {place} is damaged; delete it")
    return starts, size


def _is_rising(starts: Any, size: int) -> bool:
    if not isinstance(starts, np.ndarray) or starts.dtype != np.int64 or starts.ndim != 1:
        return False
    if not len(starts):
        return size == 0
    return bool(starts[0] == 0 and np.all(np.diff(starts, append=size) >= FRAME))


class TFRecordFile:
    """The records of one uncompressed TFRecord file by number.

    Without an index, or with `use_index=False`, the lengths are read once, from record to record.
    After a damaged length the next sound record is searched for, and everything in between counts
    as one damaged record. With an index, a file that was cut still has all its records: reading one
    that is missing raises `CorruptRecord`, and `check_size` raises it for the whole file.
    """

    def __init__(self, path: str | Path, use_index: bool = True):
        self.file = FileAt(path)
        self.path = self.file.path
        self.size = self.file.size()
        index = _read_index(path) if use_index else None
        self.indexed = index is not None
        self.starts, self.expected_size = index or (self._scan(), self.size)
        self._ends = np.append(self.starts[1:], self.expected_size)
        if self.size > self.expected_size:
            self.check_size()

    def check_size(self) -> None:
        """Raises `CorruptRecord` if the index belongs to a file of another size."""
        if self.size != self.expected_size:
            there = int(np.searchsorted(self._ends, self.size, side="right"))
            raise CorruptRecord(
                f"{self.path} has {self.size} bytes and {there} whole records, its index "
                f"{index_path(self.path).name} says {self.expected_size} bytes and {len(self)} "
                "records: the file was cut or changed. If it was replaced on purpose, delete the "
                "index, or make it anew by build_index(path)"
            )

    def __len__(self) -> int:
        return len(self.starts)

    def record(self, number: int) -> memoryview:
        """The data of a record; its checksums are compared."""
        start, end = int(self.starts[number]), int(self._ends[number])
        frame = self.file.read(start, end - start, f"record {number}")
        name = f"{self.path}, record {number} at offset {start}"
        if len(frame) < FRAME:
            raise CorruptRecord(f"{name} is truncated: only {len(frame)} bytes of it are left")
        if _length_in(frame) != len(frame) - FRAME:
            raise CorruptRecord(f"{name} has a damaged length, or is truncated")
        data = memoryview(frame)[_HEADER.size : -_CHECKSUM.size]
        _check(data, frame[-_CHECKSUM.size :], name)
        return data

    def _scan(self) -> np.ndarray:
        starts, position = [], 0
        while position < self.size:
            starts.append(position)
            position = self._end_of(position) or self._search(position + 1)
        return np.array(starts, np.int64)

    def _end_of(self, position: int) -> int | None:
        """Where the record at `position` ends; None if its length is damaged or too large."""
        if position + FRAME > self.size:
            return None
        length = _length_in(self.file.read(position, _HEADER.size, "a record's length"))
        if length is None or position + FRAME + length > self.size:
            return None
        return position + FRAME + length

    def _search(self, position: int) -> int:
        """Where the next sound record begins; the end of the file if there is none."""
        while position + FRAME <= self.size:
            block = bytes(self.file.read(position, min(SEARCH_BLOCK, self.size - position)))
            for offset in range(len(block) - _HEADER.size + 1):
                (length,) = _LENGTH.unpack_from(block, offset)
                # The cheap test first: at nearly every position the length exceeds the file.
                if position + offset + FRAME + length <= self.size and (
                    _length_in(block[offset : offset + _HEADER.size]) is not None
                ):
                    return position + offset
            position += max(1, len(block) - _HEADER.size + 1)
        return self.size


def is_tfrecord(head: bytes) -> bool:
    """Whether a file that begins with these bytes is an uncompressed TFRecord file."""
    return len(head) >= _HEADER.size and _length_in(head) is not None


def is_gzip(path: str | Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(GZIP_START)) == GZIP_START


def iterate_gzip(path: str | Path) -> Iterator[bytes]:
    """The records of a GZIP-compressed file in order; their checksums are compared."""
    number = 0
    try:
        with gzip.open(path, "rb") as file:
            while header := file.read(_HEADER.size):
                name = f"{path}, record {number}"
                if len(header) < _HEADER.size:
                    raise CorruptRecord(f"{name} is truncated")
                length = _length_in(header)
                if length is None:
                    raise CorruptRecord(f"{name} has a damaged length")
                data, tail = _read_up_to(file, length), file.read(_CHECKSUM.size)
                if len(data) < length or len(tail) < _CHECKSUM.size:
                    raise CorruptRecord(f"{name} is truncated")
                _check(data, tail, name)
                yield data
                number += 1
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorruptRecord(
            f"{path} is damaged or truncated at record {number}: {error}"
        ) from error


def _read_up_to(file: gzip.GzipFile, length: int) -> bytes:
    """Reads `length` bytes or all that are left; a wrong length never becomes an allocation."""
    blocks = []
    while length and (block := file.read(min(length, SEARCH_BLOCK))):
        blocks.append(block)
        length -= len(block)
    return b"".join(blocks)


def _length_in(frame: bytes | bytearray) -> int | None:
    """The length at the beginning of a record; None if its checksum does not match."""
    length, checksum = _HEADER.unpack_from(frame)
    return length if masked_crc(bytes(frame[: _LENGTH.size])) == checksum else None


def _check(data: bytes | memoryview, checksum: bytes | bytearray, name: str) -> None:
    (expected,) = _CHECKSUM.unpack(checksum)
    if (found := masked_crc(data)) != expected:
        raise CorruptRecord(f"{name} is damaged: checksum {found:08x} instead of {expected:08x}")
