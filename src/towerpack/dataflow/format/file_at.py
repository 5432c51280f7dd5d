"""Files read at any offset, from any thread, in any process."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from towerpack.dataflow.format.corrupt import CorruptRecord


class FileAt:
    """A file that is opened on first use, in each process anew, and read by offset.

    Not mapped into memory: a mapped file that is cut short kills the process with SIGBUS, a read
    merely comes back short. Threads may share it, since no position is kept.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._descriptor: _Descriptor | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return FileAt, (self.path,)

    def _open(self) -> int:
        found = self._descriptor
        if found is None or found.pid != os.getpid():
            with self._lock:
                found = self._descriptor
                if found is None or found.pid != os.getpid():
                    found = self._descriptor = _Descriptor(self.path)
        return found.number

    def size(self) -> int:
        return os.fstat(self._open()).st_size

    def read(self, offset: int, size: int, what: str = "a record") -> bytearray:
        """`size` bytes from `offset`; `CorruptRecord` if the file does not have them.

        The file's size is compared first: a damaged length never becomes a huge allocation.
        """
        descriptor = self._open()
        have = os.fstat(descriptor).st_size
        if size < 0 or offset < 0 or offset + size > have:
            raise CorruptRecord(
                f"{self.path}: {what} should be {size} bytes at offset {offset}, but the file has "
                f"{have} bytes: truncated or damaged"
            )
        buffer = bytearray(size)
        view, done = memoryview(buffer), 0
        while done < size:
            received = os.preadv(descriptor, [view[done:]], offset + done)
            if not received:
                raise CorruptRecord(f"{self.path} was cut short while {what} was being read")
            done += received
        return buffer

    def close(self) -> None:
        self._descriptor = None


class _Descriptor:
    """An open file's number, closed with the object, and the process that opened it."""

    def __init__(self, path: Path):
        self.pid = os.getpid()
        self.number = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def __del__(self) -> None:
        number = getattr(self, "number", None)
        if number is not None:
            os.close(number)
