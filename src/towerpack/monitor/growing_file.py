"""A file that grows at its end, also when the disk fails for a while."""

from __future__ import annotations

from pathlib import Path

from towerpack.core.files import atomic_file

MAX_PENDING = 1 << 26  # bytes kept in memory while the disk is full


class GrowingFile:
    """Appends to a file. What could not be written stays in memory for the next `write`.

    The file begins with `content`; what had its name before is replaced as a whole. After an
    OSError of `write` the file may end in the middle of something, but the next `write` that
    succeeds overwrites that: nothing is missing then, and nothing is there twice. Only when more
    than `MAX_PENDING` bytes wait, what is appended is dropped.

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
        self._content: bytes | None = content  # until the file has it
        self._pending = bytearray()
        self._size = len(content)  # of what stays as it is

    def append(self, data: bytes) -> None:
        if len(self._pending) < MAX_PENDING:
            self._pending += data

    def write(self, end: bytes = b"") -> None:
        """Writes what was appended, and `end`, which the next `write` overwrites."""
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
