"""Large tensors read straight from a data file, where the manifest says that they are.

TensorFlow's reader allocates memory that was never touched, page by page; numpy asks for large
pages, which costs a fraction. The tensors then share numpy's memory. Bytes are compared with the
manifest's checksums.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from towerpack.checkpoint.bundle import CHUNK, DATA_SUFFIX
from towerpack.checkpoint.manifest import CorruptCheckpoint, Manifest, TensorSum
from towerpack.core.optional import Lazy

tf: Any = Lazy("towerpack._tensorflow", "tf", extra="tf")  # not needed to list checkpoints

SMALLEST = 1 << 20  # bytes; below, one operation for many tensors is faster
# Types that can be handed over without a copy.
_DTYPES = ("float16", "float32", "float64", "int32", "int64")
_ALIGNMENT = 64  # bytes: what TensorFlow's kernels expect of a tensor's memory
_THREADS = 4  # the kernel's part of reading and of new memory goes on in parallel


def read_directly(
    prefix: str | Path, manifest: Manifest | None, names: Sequence[str]
) -> dict[str, Any]:
    """Those of the tensors that are worth it, by name; raises CorruptCheckpoint."""
    places = _places(manifest)
    large = [name for name in names if name in places]
    if not large or manifest is None:
        return {}
    descriptor = os.open(f"{prefix}{DATA_SUFFIX}", os.O_RDONLY)
    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            arrays = pool.map(
                lambda name: _read(descriptor, name, manifest.tensors[name], places[name]), large
            )
            # Taken over here: the arrays live as long as the tensors do.
            return {
                name: tf.experimental.dlpack.from_dlpack(array.__dlpack__())
                for name, array in zip(large, arrays, strict=True)
            }
    finally:
        os.close(descriptor)


def _places(manifest: Manifest | None) -> dict[str, int]:
    """Where large tensors begin: they lie one after another, in the order of their names."""
    places: dict[str, int] = {}
    offset = 0
    for name in sorted(manifest.tensors, key=str.encode) if manifest else ():
        tensor = manifest.tensors[name]  # type: ignore[union-attr]
        if tensor.dtype == "object":  # strings, whose size is not known here
            return {}
        size = math.prod(tensor.shape) * np.dtype(tensor.dtype).itemsize
        if size >= SMALLEST and tensor.dtype in _DTYPES:
            places[name] = offset
        offset += size
    return places


def _read(descriptor: int, name: str, tensor: TensorSum, offset: int) -> np.ndarray:
    array = _aligned(tensor.shape, np.dtype(tensor.dtype))
    flat = array.reshape(-1).view(np.uint8)
    crc = 0
    for start in range(0, flat.size, CHUNK):
        piece = flat[start : start + CHUNK]
        if os.preadv(descriptor, [piece.data], offset + start) != piece.size:
            raise CorruptCheckpoint(f"the tensor {name!r} is damaged: the file ends before it")
        crc = google_crc32c.extend(crc, piece)
    if f"{crc:08x}" != tensor.crc32c:
        raise CorruptCheckpoint(f"the tensor {name!r} is damaged: its checksum differs")
    return array


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)
