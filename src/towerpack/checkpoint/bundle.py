"""TensorFlow's checkpoint format, written straight from arrays.

`tf.train.load_checkpoint`, `RestoreV2` and every old tool read it. TensorFlow's own writer
(`SaveV2`) wants tensors, which costs a copy of everything into fresh memory, and keeps the
checksums to itself; here one pass over the arrays gives the file and the sums of the manifest, at
half the CPU time, in a thread that never enters TensorFlow.

A data file is the tensors' bytes one after another, in the order of their names. The index is a
sorted table (LevelDB's) from names to dtype, shape, place and checksum.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import google_crc32c
import numpy as np

from towerpack.checkpoint.direct_write import DirectFile
from towerpack.core.checksum import masked, masked_crc

DATA_SUFFIX = ".data-00000-of-00001"
INDEX_SUFFIX = ".index"
AT_ONCE = 1 << 22  # bytes given to the disk at once, where they need not be copied before
CHUNK = 1 << 20  # bytes that are summed and then written while they are in the cache
_BLOCK = 1 << 16  # bytes of a table's block before the next one begins
INDEX_END = struct.pack("<Q", 0xDB4775248B80FB57)
_UINT32 = 0xFFFFFFFF

# The numbers of TensorFlow's `DataType`, which are part of the format.
_DTYPES = {"string": 7, "bool": 10, "complex64": 8, "complex128": 18}
_DTYPES |= {"float32": 1, "float64": 2, "float16": 19, "bfloat16": 14}
_DTYPES |= {"float8_e5m2": 24, "float8_e4m3fn": 25}
_DTYPES |= {"int8": 6, "int16": 5, "int32": 3, "int64": 9}
_DTYPES |= {"uint8": 4, "uint16": 17, "uint32": 22, "uint64": 23}


class Output(Protocol):
    """What bytes are written to."""

    def write(self, content: Any, /) -> Any: ...


def write_bundle(prefix: str | Path, arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Writes `<prefix>.data-*` and `<prefix>.index`; gives each tensor's crc32c.

    Arrays of objects are tensors of strings. Nothing is fsynced.
    """
    for name, array in arrays.items():
        kind = np.asarray(array).dtype
        if not is_text(kind) and kind.name not in _DTYPES:
            raise TypeError(f"expected a dtype that TensorFlow has for {name!r}, received {kind}")
    entries: list[tuple[bytes, bytes]] = [(b"", _HEADER)]
    sums: dict[str, int] = {}
    offset = 0
    names = sorted(arrays, key=lambda name: name.encode())
    with DirectFile(f"{prefix}{DATA_SUFFIX}") as file, _output(file, arrays, names) as output:
        for name in names:
            array = np.asarray(arrays[name])
            strings = is_text(array.dtype)
            size, crc = _write_strings(output, array) if strings else _write_array(output, array)
            sums[name] = crc
            dtype = _DTYPES["string" if strings else array.dtype.name]
            entry = _entry(dtype, array.shape, offset, size, crc)
            entries.append((name.encode(), entry))
            offset += size
    with open(f"{prefix}{INDEX_SUFFIX}", "wb") as index:
        index.writelines(_table(entries))
    return sums


def is_text(dtype: np.dtype) -> bool:
    """Whether values are strings, whose bytes in a file are not those in memory."""
    return dtype.kind in "OSU"


@contextlib.contextmanager
def _output(
    file: DirectFile, arrays: Mapping[str, np.ndarray], names: Sequence[str]
) -> Iterator[Output]:
    """The file, or a way to it that is quicker for arrays that lie as they will in the file."""
    memory = _common_memory([arrays[name] for name in names])
    if memory is None:
        yield file
    else:
        gathered = _Gathered(file, memory)
        yield gathered
        gathered.finish()


def _common_memory(arrays: Sequence[Any]) -> np.ndarray | None:
    """The bytes in which all these arrays lie, one after another, from the first byte on."""
    memory = getattr(arrays[0], "base", None) if arrays else None
    if not isinstance(memory, np.ndarray) or memory.dtype != np.uint8 or memory.ndim != 1:
        return None
    place = memory.ctypes.data
    for array in arrays:
        if getattr(array, "base", None) is not memory or array.ctypes.data != place:
            return None
        if not array.flags.c_contiguous or array.dtype.byteorder == ">" or is_text(array.dtype):
            return None
        place += array.nbytes
    return memory


class _Gathered:
    """Takes pieces of one memory in their order, and writes many at once from where they lie."""

    def __init__(self, file: DirectFile, memory: np.ndarray):
        self._file, self._memory, self._written, self._end = file, memory, 0, 0

    def write(self, content: Any) -> None:
        self._end += len(content)
        if self._end - self._written >= AT_ONCE:
            self._write_until(self._end - self._end % AT_ONCE)

    def finish(self) -> None:
        self._write_until(self._end)

    def _write_until(self, end: int) -> None:
        self._file.write(self._memory[self._written : end].data)
        self._written = end


def checksum(array: np.ndarray) -> int:
    """The crc32c of an array as it would be written."""
    with open(os.devnull, "wb") as nowhere:
        strings = is_text(array.dtype)
        return (_write_strings if strings else _write_array)(nowhere, array)[1]


def _write_array(file: Output, array: np.ndarray) -> tuple[int, int]:
    native = array.astype(array.dtype.newbyteorder("<"), copy=False)
    flat = np.ascontiguousarray(native).reshape(-1).view(np.uint8)
    crc = 0
    for start in range(0, flat.size, CHUNK):
        piece = flat[start : start + CHUNK]
        crc = google_crc32c.extend(crc, piece)
        file.write(piece.data)
    return flat.size, crc


def _write_strings(file: Output, array: np.ndarray) -> tuple[int, int]:
    """Lengths, the checksum so far, then the strings; the lengths are summed as fixed integers."""
    values = [v.encode() if isinstance(v, str) else bytes(v) for v in array.reshape(-1).tolist()]
    lengths = b"".join(_varint(len(value)) for value in values)
    crc = 0
    for value in values:
        crc = google_crc32c.extend(
            crc, struct.pack("<I" if len(value) <= _UINT32 else "<Q", len(value))
        )
    middle = struct.pack("<I", masked(crc))
    body = b"".join(values)
    crc = google_crc32c.extend(google_crc32c.extend(crc, middle), body)
    file.write(lengths + middle + body)
    return len(lengths) + len(middle) + len(body), crc


def _table(entries: list[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """The blocks of a table, an empty one for notes about it, the index of blocks, and the foot."""
    index, offset = [], 0
    block: list[tuple[bytes, bytes]] = []
    size = 0
    for number, (key, value) in enumerate(entries):
        block.append((key, value))
        size += len(key) + len(value)
        if size >= _BLOCK or number == len(entries) - 1:
            content = _block(block)
            index.append((key, _handle(offset, content)))
            yield content
            offset += len(content)
            block, size = [], 0
    notes = _block([])
    yield notes
    notes_handle, offset = _handle(offset, notes), offset + len(notes)
    content = _block(index)
    yield content
    handles = notes_handle + _handle(offset, content)
    yield handles.ljust(40, b"\0") + INDEX_END


_TRAILER = 5  # bytes after a block: how it is compressed (it is not), and its checksum


def _block(entries: list[tuple[bytes, bytes]]) -> bytes:
    """Keys are written in full, so that each entry is a place where a reader may begin."""
    parts, starts, offset = [], [], 0
    for key, value in entries:
        entry = _varint(0) + _varint(len(key)) + _varint(len(value)) + key + value
        starts.append(offset)
        parts.append(entry)
        offset += len(entry)
    starts = starts or [0]
    parts.append(struct.pack(f"<{len(starts)}II", *starts, len(starts)))
    content = b"".join(parts) + b"\0"
    return content + struct.pack("<I", masked_crc(content))


def _handle(offset: int, content: bytes) -> bytes:
    return _varint(offset) + _varint(len(content) - _TRAILER)


def _varint(number: int) -> bytes:
    result = bytearray()
    while number >= 0x80:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    result.append(number)
    return bytes(result)


def _field(number: int, value: int | bytes) -> bytes:
    """A field of a protocol buffer: an integer, or bytes with their length."""
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    return _varint(number << 3) + _varint(value)


# BundleHeaderProto: one shard, little-endian (the default), a version that every reader accepts.
_HEADER = _field(1, 1) + _field(3, _field(1, 1))


def _entry(dtype: int, shape: tuple[int, ...], offset: int, size: int, crc: int) -> bytes:
    """BundleEntryProto: where a tensor's bytes are, and what they should sum up to."""
    dimensions = b"".join(_field(2, _field(1, length)) for length in shape)
    checksum = _varint(6 << 3 | 5) + struct.pack("<I", masked(crc))
    return _field(1, dtype) + _field(2, dimensions) + _field(4, offset) + _field(5, size) + checksum
