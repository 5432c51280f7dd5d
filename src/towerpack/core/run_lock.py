"""One run per directory: a lock that ends with its process."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

LOCK_FILE = ".run.lock"
_held: dict[tuple[int, int], int] = {}  # the locked files' device and inode -> descriptor
_counts: dict[tuple[int, int], int] = {}


class DirectoryInUse(OSError):
    """Another run uses the directory; the message names its process and host."""


class RunLock:
    """The exclusive right of this process to write a run into `directory`, which is created.

    Raises `DirectoryInUse` if another process has it. The kernel holds the lock (`flock`), so it
    ends with the process, even by SIGKILL, and a crash cannot leave a stale lock. A process may
    lock a directory several times; it is free when all locks have been released. If the file cannot
    be locked (on an old network file system or in a read-only directory), a warning is logged.
    """

    def __init__(self, directory: str | Path):
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._key: tuple[int, int] | None = None
        path = self.directory / LOCK_FILE
        try:
            while self._key is None:
                self._key = _lock(path)
        except DirectoryInUse:
            raise
        except OSError as error:
            # The module `logger` imports this one, so it cannot be used here.
            logging.getLogger("towerpack").warning(
                "%s cannot be locked, so a second run in it would not be noticed: %s",
                self.directory,
                error,
            )
            return
        _counts[self._key] = _counts.get(self._key, 0) + 1

    def release(self) -> None:
        """Allows other processes to lock the directory. May be called twice."""
        key, self._key = self._key, None
        if key is None or key not in _counts:  # a fork holds no locks
            return
        _counts[key] -= 1
        if not _counts[key]:
            del _counts[key]
            with contextlib.suppress(OSError):
                (self.directory / LOCK_FILE).unlink()
            os.close(_held.pop(key))


@contextlib.contextmanager
def locked_if_free(directory: str | Path) -> Iterator[bool]:
    """Locks the directory for the block; yields False, without waiting, if it is in use.

    >>> import tempfile
    >>> with locked_if_free(tempfile.mkdtemp()) as free:
    ...     free
    True
    """
    try:
        lock = RunLock(directory)
    except DirectoryInUse:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _lock(path: Path) -> tuple[int, int] | None:
    """Locks the file; returns None if it was removed meanwhile, and may have been created anew."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:  # another user's file
        descriptor = os.open(path, os.O_RDONLY)
    try:
        key = _identity(os.fstat(descriptor))
        if key in _held:
            os.close(descriptor)
            return key
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(path, descriptor) from None
        if not path.exists() or _identity(path.stat()) != key:
            os.close(descriptor)
            return None
        with contextlib.suppress(OSError):  # on a full disk, the lock works without the name
            os.ftruncate(descriptor, 0)
            owner = {"pid": os.getpid(), "host": socket.gethostname()}
            os.pwrite(descriptor, json.dumps(owner).encode(), 0)
    except BaseException:
        with contextlib.suppress(OSError):
            os.close(descriptor)
        raise
    _held[key] = descriptor
    return key


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _in_use(path: Path, descriptor: int) -> DirectoryInUse:
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        name = f"process {owner['pid']} on {owner['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        name = "another process"
    return DirectoryInUse(
        f"{path.parent} is in use by another run: {name}. Wait until it ends, stop it, or choose "
        "another directory"
    )


def _forget_in_a_fork() -> None:
    """Closes the locked files in a fork; otherwise the locks would outlive the parent."""
    for descriptor in _held.values():
        os.close(descriptor)
    _held.clear()
    _counts.clear()


os.register_at_fork(after_in_child=_forget_in_a_fork)
