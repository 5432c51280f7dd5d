"""What readers and writers share: lists of files, handles per process, reads by offset."""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from towerpack.core.files import TEMPORARY_MARK, fsync_path

T = TypeVar("T")
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Name = str | Callable[[], str]  # a function where building the name for every read would cost


class CorruptRecord(ValueError):
    """A record, or the file around it, is damaged; the message names file, record and reason."""


def name_of(what: Name) -> str:
    return what if isinstance(what, str) else what()


def file_list(paths: Paths) -> list[Path]:
    """Returns the files that `paths` names, those of a pattern sorted; no file is an error.

    >>> file_list(["b", "a"])
    [PosixPath('b'), PosixPath('a')]
    """
    if isinstance(paths, str | os.PathLike):
        text = os.path.expanduser(os.fspath(paths))
        if not glob.has_magic(text) or os.path.exists(text):
            return [Path(text)]
        found = sorted(map(Path, glob.glob(text)))
        if not found:
            raise FileNotFoundError(f"no file matches {text!r}")
        return found
    found = [Path(path).expanduser() for path in paths]
    if not found:
        raise ValueError("expected at least one file, received an empty list")
    return found


def shard_paths(path: str | os.PathLike[str], shards: int) -> list[Path]:
    """Returns the file names of a data set's shards; a single shard has the name itself.

    >>> [str(path) for path in shard_paths("train.tfrecord", 2)]
    ['train.tfrecord-00000-of-00002', 'train.tfrecord-00001-of-00002']
    """
    if shards < 1:
        raise ValueError(f"expected at least one shard, received {shards}")
    if shards == 1:
        return [Path(path)]
    return [Path(f"{os.fspath(path)}-{i:05}-of-{shards:05}") for i in range(shards)]


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path that replaces `path` when the block ends without an exception.

    After a crash `path` holds the old content or the new one, never a part of it. This is for
    libraries that open files themselves; for a Python file object use `core.files.atomic_file`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A directory, so that whatever the library leaves next to its file (a lock) is removed with it.
    with tempfile.TemporaryDirectory(prefix=path.name + TEMPORARY_MARK, dir=path.parent) as place:
        temporary = Path(place, path.name)
        yield temporary
        fsync_path(temporary)
        os.replace(temporary, path)
        fsync_path(path.parent)


class PerProcess(Generic[T]):
    """A handle that each process opens on first use, by `open_()`; forked children open it again.

    `open_` is sent to workers, but the handle is not.

    >>> handle = PerProcess(dict)
    >>> handle.get() is handle.get()
    True
    """

    def __init__(self, open_: Callable[[], T]):
        self._open = open_
        self._opened: tuple[int, T] | None = None
        self._lock = threading.Lock()

    def get(self) -> T:
        opened = self._opened
        if opened is None or opened[0] != os.getpid():
            with self._lock:
                opened = self._opened
                if opened is None or opened[0] != os.getpid():
                    opened = self._opened = (os.getpid(), self._open())
        return opened[1]

    def drop(self) -> None:
        self._opened = None

    def __reduce__(self) -> tuple[Any, ...]:
        return PerProcess, (self._open,)


class FileAt:
    """A file that each process opens on first use, and reads by offset.

    It is not mapped into memory: if a mapped file is truncated, SIGBUS kills the process, while a
    read returns fewer bytes. Threads may share it, since it keeps no position.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._opened = PerProcess(functools.partial(_Descriptor, self.path))

    def size(self) -> int:
        return os.fstat(self._opened.get().number).st_size

    def read(self, offset: int, size: int, what: Name = "a record") -> bytearray:
        """Reads `size` bytes at `offset`; `CorruptRecord` names `what` if the file is too short.

        The file's size is compared first, so that a damaged length never causes a huge allocation.
        """
        descriptor = self._checked(offset, size, what)
        buffer = bytearray(size)
        done = os.preadv(descriptor, [buffer], offset)
        while done < size:
            received = os.preadv(descriptor, [memoryview(buffer)[done:]], offset + done)
            if not received:
                raise CorruptRecord(
                    f"{self.path} was cut short while {name_of(what)} was being read"
                )
            done += received
        return buffer

    def read_bytes(self, offset: int, size: int, what: Name = "a record") -> bytes:
        """The same as `read`, but read-only, which saves a copy where bytes are wanted."""
        data = os.pread(self._checked(offset, size, what), size, offset)
        return data if len(data) == size else bytes(self.read(offset, size, what))

    def _checked(self, offset: int, size: int, what: Name) -> int:
        opened = self._opened.get()
        if size < 0 or offset < 0 or offset + size > opened.size:
            raise CorruptRecord(
                f"{self.path}: {name_of(what)} should be {size} bytes at offset {offset}, but the "
                f"file has {opened.size} bytes: truncated or damaged"
            )
        return opened.number


class _Descriptor:
    """The number of an open file, which is closed with the object, and the file's size."""

    def __init__(self, path: Path):
        self.number = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self.size = os.fstat(self.number).st_size

    def __del__(self) -> None:
        number = getattr(self, "number", None)
        if number is not None:
            os.close(number)
