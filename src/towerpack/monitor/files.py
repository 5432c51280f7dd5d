"""What monitors write: files that grow, the records of event files, and PNG pictures."""

from __future__ import annotations

import os
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from towerpack.core.checksum import masked_crc
from towerpack.core.files import atomic_file

MAX_PENDING = 1 << 26  # bytes kept in memory while the disk is full


class GrowingFile:
    """Appends to a file. Data that could not be written stays in memory until the next `write`.

    The file begins with `content` and replaces an earlier file of its name as a whole. After an
    OSError of `write`, the file may end in the middle of a record. The next successful `write`
    overwrites that, so nothing is missing and nothing is written twice. Only while more than
    `MAX_PENDING` bytes are waiting is appended data dropped.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "x")
    >>> file = GrowingFile(path, b"a")
    >>> file.append(b"b")
    >>> file.write(b"]")
    >>> file.append(b"c")
    >>> file.write(b"]")
    >>> path.read_bytes()
    b'abc]'
    """

    def __init__(self, path: Path, content: bytes = b""):
        self.path = path
        self._content: bytes | None = content  # None as soon as the file exists
        self._pending = bytearray()
        self._size = len(content)  # of the part that no `write` overwrites

    def append(self, data: bytes) -> None:
        if len(self._pending) < MAX_PENDING:
            self._pending += data

    def write(self, end: bytes = b"") -> None:
        """Writes the appended data and then `end`, which the next `write` overwrites."""
        if self._content is not None:
            with atomic_file(self.path) as file:
                file.write(self._content + self._pending + end)
            self._content = None
        else:
            with open(self.path, "r+b") as file:
                file.seek(self._size)
                file.write(self._pending + end)
                file.truncate()
        self._size += len(self._pending)
        self._pending.clear()


SIGNATURE = b"\x89PNG\r\n\x1a\n"


def encode_png(image: np.ndarray) -> bytes:
    """A PNG of a uint8 picture [height, width, 1, 3 or 4], exact.

    >>> encode_png(np.zeros([2, 2, 3], np.uint8))[1:4]
    b'PNG'
    """
    height, width, channels = image.shape
    colour_type = {1: 0, 3: 2, 4: 6}[channels]
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # each row begins with filter 0
    rows[:, 1:] = image.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b"")]
    return SIGNATURE + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + check


FILE_MARK = "events.out.tfevents."
_HEAD, _TAIL = 12, 4  # bytes around a record: its length with a checksum, its own checksum


def event_file_name(suffix: str = "") -> str:
    """A name that TensorBoard takes for an event file and sorts after older ones."""
    # Nanoseconds distinguish two writers that one process opens in the same second.
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    return f"{FILE_MARK}{seconds}.{nanoseconds:09d}.{socket.gethostname()}.{os.getpid()}{suffix}"


def framed(record: bytes) -> bytes:
    """A record with its length and checksums, as it is stored in the file."""
    length = struct.pack("<Q", len(record))
    return b"".join([length, _checksum(length), record, _checksum(record)])


def read_event_records(path: str | Path) -> Iterator[bytes]:
    """Yields the records of an event file, up to the first that is truncated or damaged.

    A file that is being written often ends in the middle of a record.
    """
    with open(path, "rb") as file:
        while len(head := file.read(_HEAD)) == _HEAD:
            if _checksum(head[:8]) != head[8:]:
                return
            (length,) = struct.unpack("<Q", head[:8])
            record, tail = file.read(length), file.read(_TAIL)
            if len(record) < length or _checksum(record) != tail:
                return
            yield record


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc(data))
