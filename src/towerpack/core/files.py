"""Files and directories that exist completely or not at all, and downloads that resume.

Everything is written under a temporary name in the same directory, fsynced and renamed, and then
the directory is fsynced. So after a crash or a power cut, the final name has the old content or the
new content, and never a part.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from towerpack.core.progress import Progress

TEMPORARY_MARK = ".towerpack-tmp-"
CHUNK = 1 << 18
NETWORK_TIMEOUT = 30.0  # seconds without a byte


class DownloadError(OSError):
    """A file could not be downloaded from any of its addresses."""


def fsync_path(path: str | Path) -> None:
    """Flushes the content of a file, or the entries of a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_file(path: str | Path, mode: str = "wb") -> Iterator[IO]:
    """A file object whose content appears under `path` when the block ends without an exception.

    >>> import tempfile, pathlib
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "x.txt"
    >>> with atomic_file(target, "w") as file:
    ...     _ = file.write("whole")
    >>> target.read_text()
    'whole'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=path.name + TEMPORARY_MARK, dir=path.parent)
    try:
        # mkstemp's own mode, 0600, would hide the file from other users.
        os.fchmod(descriptor, 0o666 & ~_umask())
        encoding = None if "b" in mode else "utf-8"
        with os.fdopen(descriptor, mode, encoding=encoding) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        fsync_path(path.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def atomic_directory(path: str | Path, overwrite: bool = False) -> Iterator[Path]:
    """A directory to fill, which gets the name `path` when the block ends without an exception.

    An existing `path` is an error. With `overwrite`, it is replaced: for a moment between two
    renames, neither of the directories exists, but they are never mixed.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists; remove it first or choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=path.name + TEMPORARY_MARK, dir=path.parent))
    try:
        temporary.chmod(0o777 & ~_umask())
        yield temporary
        for root, _, names in os.walk(temporary):
            for name in names:
                fsync_path(Path(root, name))
            fsync_path(root)
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=path.name + TEMPORARY_MARK, dir=path.parent))
            os.replace(path, old / "old")
            os.replace(temporary, path)
            shutil.rmtree(old)
        else:
            os.replace(temporary, path)
        fsync_path(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def remove_litter(directory: str | Path) -> list[Path]:
    """Removes what a killed process left of `atomic_file` and `atomic_directory`; returns it."""
    litter = list(Path(directory).glob(f"*{TEMPORARY_MARK}*"))
    for entry in litter:
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    return litter


def sha256_of(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(urls: str | list[str], path: str | Path, sha256: str | None = None) -> Path:
    """Downloads a file to `path`, from the first of the addresses that has it.

    The received part stays in `<path>.part`, and a later call resumes there. The file gets its name
    only when it is complete and has the right checksum, if one is given. If the part of an earlier
    call leads to a wrong checksum, the whole file is downloaded again; if the checksum is then
    still wrong, that is an error.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    failures = []
    for url in [urls] if isinstance(urls, str) else urls:
        try:
            resumed = part.exists()
            found = _fetch(url, part)
            if resumed and sha256 not in (None, found):
                part.unlink()
                found = _fetch(url, part)
        except (OSError, ValueError, http.client.HTTPException) as error:
            failures.append(f"{url}: {error}")
            continue
        if sha256 in (None, found):
            fsync_path(part)
            os.replace(part, path)
            fsync_path(path.parent)
            return path
        part.unlink()
        failures.append(f"{url}: sha256 {found} instead of {sha256}")
    raise DownloadError(f"{path.name} could not be downloaded:\n  " + "\n  ".join(failures))


def _fetch(url: str, part: Path) -> str:
    """Completes the part and returns its sha256."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=NETWORK_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 416 or not have:
            raise
        # The server has no further bytes: the part is complete, or it belongs to another file.
        if error.headers.get("Content-Range", "").endswith(f"/{have}"):
            return sha256_of(part)
        part.unlink()
        return _fetch(url, part)
    with answer:
        if answer.status != 206:  # the server sends the whole file
            have = 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with open(part, "ab" if have else "wb") as file, Progress(total, part.stem, "B") as bar:
            bar.update(have)
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                bar.update(len(chunk))
        if total is not None and part.stat().st_size != total:
            raise OSError(f"received {part.stat().st_size} of {total} bytes; try again to resume")
    return sha256_of(part)


def _umask() -> int:
    # No call only reads it.
    current = os.umask(0o022)
    os.umask(current)
    return current
