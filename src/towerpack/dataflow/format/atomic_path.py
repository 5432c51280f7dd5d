"""A path for libraries that open files themselves, made final when the content is whole."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from towerpack.core.files import TEMPORARY_MARK, fsync_path


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path`; its content takes the name when the block ends well.

    After a crash `path` holds the old content or the new, never a half. For what is written through
    a Python file object, `core.files.atomic_file` is the simpler way.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A directory, so that whatever the library leaves beside its file (a lock) goes with it.
    with tempfile.TemporaryDirectory(prefix=path.name + TEMPORARY_MARK, dir=path.parent) as place:
        temporary = Path(place, path.name)
        yield temporary
        fsync_path(temporary)
        os.replace(temporary, path)
        fsync_path(path.parent)
