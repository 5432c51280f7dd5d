"""Which files a source is made of: one, several, or all that a pattern finds."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from pathlib import Path

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def file_list(paths: Paths) -> list[Path]:
    """The files, a pattern's in sorted order; an error if there is none.

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
    """The names of the parts of one data set; the name itself for a single one.

    >>> [str(path) for path in shard_paths("train.tfrecord", 2)]
    ['train.tfrecord-00000-of-00002', 'train.tfrecord-00001-of-00002']
    """
    if shards < 1:
        raise ValueError(f"expected at least one shard, received {shards}")
    if shards == 1:
        return [Path(path)]
    return [Path(f"{os.fspath(path)}-{i:05}-of-{shards:05}") for i in range(shards)]
