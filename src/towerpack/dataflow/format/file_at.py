"""Files read at any offset, from any thread, in any process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from towerpack.dataflow.format.corrupt import CorruptRecord

Name = str | Callable[[], str]  # a function where making it for every read would cost


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

    def _open(self) -> _Descriptor:
        found = self._descriptor
        if found is None or found.pid != os.getpid():
            with self._lock:
                found = self._descriptor
                if found is None or found.pid != os.getpid():
                    found = self._descriptor = _Descriptor(self.path)
        return found

    def size(self) -> int:
        return os.fstat(self._open().number).st_size

    def read(self, offset: int, size: int, what: Name = "a record") -> bytearray:
        """`size` bytes from `offset`; `CorruptRecord`, with `what`, if the file does not have them.

        The file's size is compared first: a damaged length never becomes a huge allocation.
        """
        descriptor = self._checked(offset, size, what)
        buffer = bytearray(size)
        done = os.preadv(descriptor, [buffer], offset)
        while done < size:
            received = os.preadv(descriptor, [memoryview(buffer)[done:]], offset + done)
            if not received:
                raise self._cut_short(what)
            done += received
        return buffer

    def read_bytes(self, offset: int, size: int, what: Name = "a record") -> bytes:
        """The same as bytes, which cannot be written into."""
        data = os.pread(self._checked(offset, size, what), size, offset)
        return data if len(data) == size else bytes(self.read(offset, size, what))

    def _checked(self, offset: int, size: int, what: Name) -> int:
        descriptor = self._open()
        if size < 0 or offset < 0 or offset + size > descriptor.size:
            raise CorruptRecord(
                f"{self.path}: {name_of(what)} should be {size} bytes at offset {offset}, but the "
                f"file has {descriptor.size} bytes: truncated or damaged"
            )
        return descriptor.number

    def _cut_short(self, what: Name) -> CorruptRecord:
        return CorruptRecord(f"{self.path} was cut short while {name_of(what)} was being read")

    def close(self) -> None:
        self._descriptor = None


class _Descriptor:
    """An open file's number, closed with the object, its size, and the process that opened it."""

    def __init__(self, path: Path):
        self.pid = os.getpid()
        self.number = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self.size = os.fstat(self.number).st_size

    def __del__(self) -> None:
        number = getattr(self, "number", None)
        if number is not None:
            os.close(number)


def name_of(what: Name) -> str:
    return what if isinstance(what, str) else what()
