"""The IDX format of MNIST and its kin: a magic number, the shape, the bytes of one array."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

UNSIGNED_BYTES = 0x08  # the one element type that these data sets use


def read_idx(path: str | Path) -> bytes:
    """The content of an IDX file, uncompressed if its name ends in `.gz`."""
    path = Path(path)
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is no whole gzip file ({error}); delete it and fetch it again"
        ) from error


def parse_idx(content: bytes, name: str) -> np.ndarray:
    """The read-only array of an IDX file's content; `name` stands for it in errors.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), "labels")
    array([7, 8, 9], dtype=uint8)
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != UNSIGNED_BYTES:
        raise ValueError(
            f"{name} is no IDX file of unsigned bytes: expected it to begin with 00 00 08, "
            f"received {content[:3].hex(' ')}"
        )
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise ValueError(f"{name} ends within its header; delete it and fetch it again")
    shape = [int(size) for size in np.frombuffer(content, ">u4", dimensions, offset=4)]
    if len(content) - start != math.prod(shape):
        raise ValueError(
            f"{name} should hold {math.prod(shape)} bytes after its header (shape {shape}), "
            f"received {len(content) - start}; delete it and fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
