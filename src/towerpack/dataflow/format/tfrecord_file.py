"""TFRecord files: framed records with checksums, and an index beside the file.

A record is a length (8 bytes), the checksum of the length, the data, and the checksum of the data,
all little-endian; the checksums are CRC-32C, rotated and shifted by a constant. TensorFlow reads
such a file only from its beginning. The index holds where each record begins, so that any can be
reached; and since it also says where a record ends, a damaged length loses that record alone.
"""

from __future__ import annotations

import contextlib
import gzip
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import google_crc32c
import numpy as np

from towerpack.core import codec
from towerpack.core.files import atomic_file
from towerpack.dataflow.format.corrupt import CorruptRecord
from towerpack.dataflow.format.file_at import FileAt

INDEX_SUFFIX = ".index"
GZIP_START = b"\x1f\x8b"
SEARCH_BLOCK = 1 << 20  # bytes looked through at once for the next record behind a damaged length

_HEADER = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
FRAME = _HEADER.size + _CHECKSUM.size  # what a record takes beyond its data


def masked_crc(data: Any) -> int:
    """TFRecord's checksum. The mask keeps checksums of data that contains checksums apart."""
    # google_crc32c takes bytes and arrays, but neither bytearrays nor views.
    crc = google_crc32c.value(data if type(data) is bytes else np.frombuffer(data, np.uint8))
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def is_gzip(path: str | Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(GZIP_START)) == GZIP_START


class TFRecordWriter:
    """Writes records to an open file; `write_tfrecord` is what most callers want."""

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
    """A writer of a TFRecord file, which appears under its name, whole, when the block ends.

    With `compression='GZIP'` it can only be read from its beginning; otherwise an index is written
    beside it.
    """
    if compression not in (None, "", "GZIP"):
        raise ValueError(f"expected compression None or 'GZIP', received {compression!r}")
    path = Path(path)
    # An index of the file that stood here before would not fit the new one.
    index_path(path).unlink(missing_ok=True)
    with atomic_file(path, "wb") as file:
        if compression:
            with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed:
                yield TFRecordWriter(packed)  # type: ignore[arg-type]
            return
        writer = TFRecordWriter(file)
        yield writer
    write_index(path, np.array(writer.starts, np.int64), writer.position)


def index_path(path: str | Path) -> Path:
    """Where a file's index lies: hidden, so that the pattern `train-*` finds the records alone."""
    path = Path(path)
    return path.with_name(f".{path.name}{INDEX_SUFFIX}")


def write_index(path: str | Path, starts: np.ndarray, size: int) -> None:
    with atomic_file(index_path(path), "wb") as file:
        file.write(codec.encode({"format": "tfrecord", "size": size, "starts": starts}))


class Index(NamedTuple):
    """Where each record begins, and the size of the file that has them all."""

    starts: np.ndarray
    size: int


def read_index(path: str | Path) -> Index | None:
    """The index beside a file; None if there is none, `CorruptRecord` if it is damaged."""
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
        return None  # something else's index
    starts: Any = stored.get("starts")
    size = stored.get("size")
    if not isinstance(size, int) or not _is_rising(starts, size):
        raise CorruptRecord(f"the index {place} is damaged; delete it")
    return Index(starts, size)


def _is_rising(starts: Any, size: int) -> bool:
    if not isinstance(starts, np.ndarray) or starts.dtype != np.int64 or starts.ndim != 1:
        return False
    if not len(starts):
        return size == 0
    return bool(starts[0] == 0 and np.all(np.diff(starts, append=size) >= FRAME))


class TFRecordFile:
    """The records of one uncompressed TFRecord file by number.

    Without an index, or with `use_index=False`, the lengths are read once, from record to record.
    Where one is damaged, the next sound record is searched for: what lies between counts as one
    damaged record. With an index, a file that was cut still has all its records: reading those that
    are missing raises `CorruptRecord`, and `check_size` does so for the file.
    """

    def __init__(self, path: str | Path, use_index: bool = True):
        self.file = FileAt(path)
        self.size = self.file.size()
        index = read_index(path) if use_index else None
        self.indexed = index is not None
        self.starts, self.expected_size = index or Index(self._scan(), self.size)
        self._ends = np.append(self.starts[1:], self.expected_size)
        if self.size > self.expected_size:
            self.check_size()

    def check_size(self) -> None:
        """Raises `CorruptRecord` if the index is of a file of another size."""
        if self.size != self.expected_size:
            there = int(np.searchsorted(self._ends, self.size, side="right"))
            raise CorruptRecord(
                f"{self.path} has {self.size} bytes and {there} whole records, its index "
                f"{index_path(self.path).name} says {self.expected_size} bytes and {len(self)} "
                "records: the file was cut or changed. If it was replaced on purpose, delete the "
                "index, or make it anew by build_index(path)"
            )

    @property
    def path(self) -> Path:
        return self.file.path

    def __len__(self) -> int:
        return len(self.starts)

    def record(self, number: int) -> memoryview:
        """The data of a record, its checksums compared."""
        start, end = int(self.starts[number]), int(self._ends[number])
        frame = self.file.read(start, end - start, f"record {number}")
        return memoryview(frame)[_HEADER.size : _HEADER.size + self._checked(frame, number)]

    def _checked(self, frame: bytearray, number: int) -> int:
        name = f"{self.path}, record {number} at offset {int(self.starts[number])}"
        if len(frame) < FRAME:
            raise CorruptRecord(f"{name} is truncated: {len(frame)} bytes are left of it")
        length, checksum = _HEADER.unpack_from(frame)
        if masked_crc(bytes(frame[: _LENGTH.size])) != checksum or length + FRAME != len(frame):
            raise CorruptRecord(f"{name} has a damaged length, or is truncated")
        (checksum,) = _CHECKSUM.unpack_from(frame, len(frame) - _CHECKSUM.size)
        found = masked_crc(memoryview(frame)[_HEADER.size : -_CHECKSUM.size])
        if found != checksum:
            raise CorruptRecord(
                f"{name} is damaged: checksum {found:08x} instead of {checksum:08x}"
            )
        return length

    def _scan(self) -> np.ndarray:
        starts, position = [], 0
        while position < self.size:
            starts.append(position)
            position = self._end_of(position) or self._search(position + 1)
        return np.array(starts, np.int64)

    def _end_of(self, position: int) -> int | None:
        """Where the record that begins here ends; None if its length is damaged or too large."""
        if position + FRAME > self.size:
            return None
        header = self.file.read(position, _HEADER.size, "a record's length")
        length, checksum = _HEADER.unpack(header)
        end = position + FRAME + length
        if end > self.size or masked_crc(bytes(header[: _LENGTH.size])) != checksum:
            return None
        return end

    def _search(self, position: int) -> int:
        """Where the next sound record begins; the end of the file if there is none."""
        while position + FRAME <= self.size:
            block = bytes(self.file.read(position, min(SEARCH_BLOCK, self.size - position)))
            for offset in range(len(block) - _HEADER.size + 1):
                length, checksum = _HEADER.unpack_from(block, offset)
                # First what is cheap: nearly every position asks for more than the file has.
                if position + offset + FRAME + length <= self.size and (
                    masked_crc(block[offset : offset + _LENGTH.size]) == checksum
                ):
                    return position + offset
            position += max(1, len(block) - _HEADER.size + 1)
        return self.size


def _read_up_to(file: gzip.GzipFile, length: int) -> bytes:
    """`length` bytes, or all that are left: a length that lies does not become an allocation."""
    blocks = []
    while length and (block := file.read(min(length, SEARCH_BLOCK))):
        blocks.append(block)
        length -= len(block)
    return b"".join(blocks)


def iterate_gzip(path: str | Path) -> Iterator[bytes]:
    """The records of a GZIP-compressed file, in order, checksums compared."""
    number = 0
    try:
        with gzip.open(path, "rb") as file:
            while header := file.read(_HEADER.size):
                name = f"{path}, record {number}"
                if len(header) < _HEADER.size:
                    raise CorruptRecord(f"{name} is truncated")
                length, checksum = _HEADER.unpack(header)
                if masked_crc(header[: _LENGTH.size]) != checksum:
                    raise CorruptRecord(f"{name} has a damaged length")
                data, tail = _read_up_to(file, length), file.read(_CHECKSUM.size)
                if len(data) < length or len(tail) < _CHECKSUM.size:
                    raise CorruptRecord(f"{name} is truncated")
                if masked_crc(data) != _CHECKSUM.unpack(tail)[0]:
                    raise CorruptRecord(f"{name} is damaged: its checksum does not fit")
                yield data
                number += 1
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorruptRecord(
            f"{path} is damaged or truncated at record {number}: {error}"
        ) from error
