"""Files written past the page cache.

A checkpoint is written once and, with luck, never read. Through the page cache each of its bytes
takes a page of memory from others, is copied there, and waits for a flush that later stalls the
disk; all of that at the cost of the training that goes on. Written directly it costs about half
the CPU time, and there is nothing left to flush at the end.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from types import TracebackType

import numpy as np

_BUFFER = 4 << 20  # bytes given to the disk at once: enough for its full speed
_BLOCK = 4096  # what addresses, places and sizes of direct writes are multiples of
_DIRECT: int = getattr(os, "O_DIRECT", 0)  # Linux has it


class DirectFile:
    """A new file, written from its beginning to its end, directly where the file system can.

    The last bytes, and everything on a file system that cannot, go through the page cache: `fsync`
    the file as any other. Raises OSError as `os.write` does.
    """

    def __init__(self, path: str | Path):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._path = path
        self._direct = bool(_DIRECT)
        try:
            self._descriptor = os.open(path, flags | _DIRECT, 0o666)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._direct = False
            self._descriptor = os.open(path, flags, 0o666)
        # Anonymous memory begins on a page, as direct writes need.
        self._memory = mmap.mmap(-1, _BUFFER)
        self._buffer = np.frombuffer(self._memory, np.uint8)
        self._filled = 0

    def write(self, content: bytes | memoryview) -> None:
        """Copies to a buffer first, but for whole blocks that lie on a page, when it is empty."""
        rest = np.frombuffer(content, np.uint8)
        if self._direct and not self._filled and not rest.ctypes.data % _BLOCK:
            whole = rest.size - rest.size % _BLOCK
            self._give(rest[:whole].data)
            rest = rest[whole:]
        while rest.size:
            part = rest[: _BUFFER - self._filled]
            self._buffer[self._filled : self._filled + part.size] = part
            self._filled += part.size
            rest = rest[part.size :]
            if self._filled == _BUFFER:
                self._flush()

    def _flush(self) -> None:
        self._give(memoryview(self._memory)[: self._filled])
        self._filled = 0

    def _give(self, view: memoryview) -> None:
        while len(view):
            if self._direct and len(view) % _BLOCK:  # the end, or a full disk took half a block
                self._go_through_the_cache()
            try:
                done = os.write(self._descriptor, view)
            except OSError as error:
                if not self._direct or error.errno != errno.EINVAL:
                    raise
                self._go_through_the_cache()  # this file system has larger blocks, or cannot
                continue
            view = view[done:]

    def _go_through_the_cache(self) -> None:
        place = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        self._release()
        self._descriptor = os.open(self._path, os.O_WRONLY)
        os.lseek(self._descriptor, place, os.SEEK_SET)
        self._direct = False

    def close(self) -> None:
        """Writes the rest; may be called twice."""
        if self._descriptor < 0:
            return
        try:
            self._flush()
        finally:
            self._release()

    def _release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def __enter__(self) -> DirectFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif self._descriptor >= 0:
            self._release()  # what was to follow is lost anyway; the error says why
