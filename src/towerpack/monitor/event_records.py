"""The records of TensorBoard's event files: TFRecords, each holding one `Event` message."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from towerpack.core.checksum import masked_crc

FILE_MARK = "events.out.tfevents."
_HEAD, _TAIL = 12, 4  # bytes around a record: its length with a checksum, its own checksum


def event_file_name(suffix: str = "") -> str:
    """A name that TensorBoard takes for an event file, and sorts behind older ones."""
    # Nanoseconds tell apart two writers that one process opens in the same second.
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    return f"{FILE_MARK}{seconds}.{nanoseconds:09d}.{socket.gethostname()}.{os.getpid()}{suffix}"


def framed(record: bytes) -> bytes:
    """A record as it stands in the file."""
    length = struct.pack("<Q", len(record))
    return b"".join([length, _masked_crc(length), record, _masked_crc(record)])


def read_records(path: str | Path) -> Iterator[bytes]:
    """The sound records of a file from its beginning; ends at the first that is cut or damaged.

    A file that is being written ends in the middle of a record as often as not.
    """
    with open(path, "rb") as file:
        while len(head := file.read(_HEAD)) == _HEAD:
            if _masked_crc(head[:8]) != head[8:]:
                return
            (length,) = struct.unpack("<Q", head[:8])
            record, tail = file.read(length), file.read(_TAIL)
            if len(record) < length or _masked_crc(record) != tail:
                return
            yield record


def _masked_crc(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc(data))
