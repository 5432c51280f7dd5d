"""TensorFlow's checkpoint format, written straight from arrays.

`tf.train.load_checkpoint`, `RestoreV2` and all older tools read it. TensorFlow's own writer
(`SaveV2`) needs tensors, which costs a copy of everything into new memory, and does not return the
checksums. Writing the files here yields the checksums for the manifest, takes a fraction of the
CPU time, and never enters TensorFlow.

A data file holds the bytes of the tensors one after another, sorted by name. The index is a sorted
table (LevelDB's format) from names to dtype, shape, offset and checksum.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import google_crc32c
import numpy as np

from towerpack.core.checksum import masked, masked_crc

DATA_SUFFIX = ".data-00000-of-00001"
INDEX_SUFFIX = ".index"
INDEX_END = struct.pack("<Q", 0xDB4775248B80FB57)
_CHUNK = 1 << 20  # bytes summed at once: google_crc32c holds the interpreter's lock meanwhile
_DIRECT: int = getattr(os, "O_DIRECT", 0)  # exists on Linux
DIRECT_BLOCK = 4096  # addresses, offsets and sizes of direct writes are multiples of it
_DIRECT_WRITE = 4 << 20  # bytes per direct write: enough for the full speed of the disk
_TABLE_BLOCK = 1 << 16  # bytes in a block of the index before the next one begins
_UINT32 = 0xFFFFFFFF

# The numbers of TensorFlow's `DataType`, which are part of the format.
_DTYPES = {"string": 7, "bool": 10, "complex64": 8, "complex128": 18}
_DTYPES |= {"float32": 1, "float64": 2, "float16": 19, "bfloat16": 14}
_DTYPES |= {"float8_e5m2": 24, "float8_e4m3fn": 25}
_DTYPES |= {"int8": 6, "int16": 5, "int32": 3, "int64": 9}
_DTYPES |= {"uint8": 4, "uint16": 17, "uint32": 22, "uint64": 23}


class PackedArrays(dict[str, np.ndarray]):
    """Arrays in one `memory`, which begins with exactly the bytes of their data file.

    `memory` begins on a page, as direct writes require. Nothing may be added or replaced.
    """

    memory: np.ndarray


def write_bundle(prefix: str | Path, arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Writes `<prefix>.data-*` and `<prefix>.index`; returns the crc32c of each tensor.

    Arrays of objects are written as tensors of strings. Nothing is fsynced.
    """
    for name, array in arrays.items():
        kind = np.asarray(array).dtype
        if not is_text(kind) and kind.name not in _DTYPES:
            raise TypeError(f"expected a dtype that TensorFlow has for {name!r}, received {kind}")
    entries: list[tuple[bytes, bytes]] = [(b"", _HEADER)]
    sums: dict[str, int] = {}
    offset = 0
    packed = isinstance(arrays, PackedArrays)
    with open(f"{prefix}{DATA_SUFFIX}", "wb") as file:
        for name in sorted(arrays, key=str.encode):
            array = np.asarray(arrays[name])
            content, sums[name] = _encode(array)
            if not packed:
                file.write(content)
            dtype = _DTYPES["string" if is_text(array.dtype) else array.dtype.name]
            entry = _entry(dtype, array.shape, offset, len(content), sums[name])
            entries.append((name.encode(), entry))
            offset += len(content)
        if isinstance(arrays, PackedArrays):
            done = _write_directly(file.name, arrays.memory[:offset])
            file.seek(done)
            file.write(arrays.memory[done:offset].data)
    with open(f"{prefix}{INDEX_SUFFIX}", "wb") as index:
        index.writelines(_table(entries))
    return sums


def _write_directly(path: str, memory: np.ndarray) -> int:
    """Writes whole blocks past the page cache; returns the number of bytes written.

    Through the page cache, every byte would be copied to a page taken from other uses and flushed
    later, all while training continues; that costs two to ten times the CPU time. The caller
    writes what remains: the last partial block, or everything where the file system cannot do it.
    """
    done, end = 0, memory.size - memory.size % DIRECT_BLOCK
    descriptor = -1
    try:
        if _DIRECT:
            descriptor = os.open(path, os.O_WRONLY | _DIRECT)
            while done < end:
                done += os.write(descriptor, memory[done : min(done + _DIRECT_WRITE, end)].data)
    except OSError as error:
        # Not supported, larger blocks are required, or a full disk accepted part of a block.
        if error.errno != errno.EINVAL:
            raise
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return done


def is_text(dtype: np.dtype) -> bool:
    """Whether values are strings, whose bytes in a file differ from those in memory."""
    return dtype.kind in "OSU"


def checksum(array: np.ndarray) -> int:
    """The crc32c of an array as it would be written."""
    return _encode(array)[1]


def _encode(array: np.ndarray) -> tuple[memoryview | bytes, int]:
    """The bytes of a tensor in the file, and their crc32c."""
    if is_text(array.dtype):
        return _encode_strings(array)
    native = array.astype(array.dtype.newbyteorder("<"), copy=False)
    flat = np.ascontiguousarray(native).reshape(-1).view(np.uint8)
    crc = 0
    for start in range(0, flat.size, _CHUNK):
        crc = google_crc32c.extend(crc, flat[start : start + _CHUNK])
    return flat.data, crc


def _encode_strings(array: np.ndarray) -> tuple[bytes, int]:
    """Lengths, the checksum so far, then the strings; lengths are summed as fixed-size integers."""
    values = [v.encode() if isinstance(v, str) else bytes(v) for v in array.reshape(-1).tolist()]
    crc = 0
    for value in values:
        crc = google_crc32c.extend(
            crc, struct.pack("<I" if len(value) <= _UINT32 else "<Q", len(value))
        )
    middle = struct.pack("<I", masked(crc))
    body = b"".join(values)
    crc = google_crc32c.extend(google_crc32c.extend(crc, middle), body)
    return b"".join(_varint(len(value)) for value in values) + middle + body, crc


def _table(entries: list[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """The data blocks of a table, an empty block of metadata, the index of blocks, the footer."""
    index, offset = [], 0
    block: list[tuple[bytes, bytes]] = []
    size = 0
    for number, (key, value) in enumerate(entries):
        block.append((key, value))
        size += len(key) + len(value)
        if size >= _TABLE_BLOCK or number == len(entries) - 1:
            content = _block(block)
            index.append((key, _handle(offset, content)))
            yield content
            offset += len(content)
            block, size = [], 0
    meta = _block([])
    yield meta
    meta_handle, offset = _handle(offset, meta), offset + len(meta)
    content = _block(index)
    yield content
    handles = meta_handle + _handle(offset, content)
    yield handles.ljust(40, b"\0") + INDEX_END


_TRAILER = 5  # bytes after a block: the kind of compression (none) and the checksum


def _block(entries: list[tuple[bytes, bytes]]) -> bytes:
    """A block of entries; keys are written in full, so that every entry is a restart point."""
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
    """BundleEntryProto: the place and the checksum of a tensor's bytes."""
    dimensions = b"".join(_field(2, _field(1, length)) for length in shape)
    checksum = _varint(6 << 3 | 5) + struct.pack("<I", masked(crc))
    return _field(1, dtype) + _field(2, dimensions) + _field(4, offset) + _field(5, size) + checksum
