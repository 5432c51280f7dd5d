"""Datapoints as bytes: a msgpack header, the raw buffers, a checksum; never pickle.

Layout, little-endian, every buffer aligned to 64 bytes from the start so that arrays can be used
in place:

    magic 'TPK1' | crc32c of all that follows | header length | payload length | header | buffers

What goes in comes out exact: nested lists, tuples and dicts; arrays of any fixed-size dtype in
their byte order and memory order; numpy and Python scalars; str, bytes, None. What cannot is refused
by `EncodeError` with the component's path. `decode` believes nothing: it checks the checksum, then
every length before it allocates, and raises `DecodeError` and nothing else.
"""

from __future__ import annotations

import math
import struct
import sys
from typing import Any

import google_crc32c
import msgspec
import numpy as np

MAGIC = b"TPK1"
ALIGNMENT = 64  # a cache line, and enough for any vector load
MAX_HEADER = 1 << 26  # 64 MB describe millions of leaves; more is garbage
INLINE_BYTES = 256  # shorter bytes travel in the header: aligning them would cost more
EXTENSION_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4")

_PREFIX = struct.Struct("<4sIIQ")
_NATIVE_KINDS = "biufcSUVmM"
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()


class EncodeError(ValueError):
    """A datapoint holds something that the codec cannot carry; the message names the component."""


class DecodeError(ValueError):
    """Bytes are not a record of this codec, or are damaged."""


def encode(tree: Any) -> bytes:
    """The datapoint as one bytes object.

    >>> decode(encode([np.arange(3), {"label": 1}]))
    [array([0, 1, 2]), {'label': 1}]
    """
    return b"".join(encode_parts(tree))


def encode_parts(tree: Any) -> list[Any]:
    """The same bytes as a list of buffers, arrays by reference: for a gathering write."""
    buffers: list[Any] = []
    header = _encoder.encode(_describe(tree, "", buffers))
    if len(header) > MAX_HEADER:
        raise EncodeError(
            f"the description of this datapoint takes {len(header)} bytes, at most {MAX_HEADER} "
            "are allowed; it has too many leaves: stack them into arrays"
        )
    parts: list[Any] = [header]
    position = _PREFIX.size + len(header)
    payload = 0
    for buffer in buffers:
        padding = -position % ALIGNMENT
        if padding:
            parts.append(bytes(padding))
        parts.append(buffer)
        position += padding + _length(buffer)
        payload += padding + _length(buffer)
    lengths = struct.pack("<IQ", len(header), payload)
    checksum = google_crc32c.value(lengths)
    for part in parts:
        checksum = google_crc32c.extend(checksum, part)
    return [_PREFIX.pack(MAGIC, checksum, len(header), payload), *parts]


def decode(data: Any) -> Any:
    """The datapoint. Arrays are read-only views of `data` where their alignment allows it."""
    try:
        view = memoryview(data).cast("B")
        if len(view) < _PREFIX.size:
            raise DecodeError(f"expected at least {_PREFIX.size} bytes, received {len(view)}")
        magic, checksum, header_length, payload_length = _PREFIX.unpack_from(view)
        if magic != MAGIC:
            raise DecodeError(f"expected a record that begins with {MAGIC!r}, received {magic!r}")
        expected = _PREFIX.size + header_length + payload_length
        if header_length > MAX_HEADER or expected != len(view):
            raise DecodeError(f"the record says {expected} bytes, received {len(view)}: truncated?")
        found = google_crc32c.value(np.frombuffer(view[8:], np.uint8))
        if found != checksum:
            raise DecodeError(f"checksum {found:08x} instead of {checksum:08x}: damaged data")
        header = _decoder.decode(view[_PREFIX.size : _PREFIX.size + header_length])
        reader = _Reader(view.toreadonly(), _PREFIX.size + header_length)
        tree = reader.build(header)
        if reader.position != len(view):
            raise DecodeError(f"{len(view) - reader.position} bytes are left over")
        return tree
    except DecodeError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError) as error:
        raise DecodeError(f"malformed record: {error}") from error


def dtype_name(dtype: np.dtype) -> str | None:
    """The portable name of a dtype, byte order included; None for one that has no fixed meaning."""
    if dtype.name in EXTENSION_DTYPES:
        return dtype.name
    if dtype.kind in _NATIVE_KINDS and dtype.fields is None and dtype.subdtype is None:
        return dtype.str
    return None


def dtype_from_name(name: str) -> np.dtype:
    if name in EXTENSION_DTYPES:
        # Looked up, not imported: decoding must not run code that the data asks for.
        ml_dtypes = sys.modules.get("ml_dtypes")
        if ml_dtypes is None:
            raise DecodeError(f"dtype {name} needs the package ml_dtypes: import it before decoding")
        return np.dtype(getattr(ml_dtypes, name))
    dtype = np.dtype(name)
    if dtype_name(dtype) != name:
        raise DecodeError(f"dtype {name!r} is not allowed")
    return dtype


def _length(buffer: Any) -> int:
    return buffer.nbytes if isinstance(buffer, np.ndarray) else len(buffer)


def _describe(node: Any, path: str, buffers: list[Any]) -> Any:
    """The header's node for a subtree; what is large is appended to `buffers`."""
    if node is None or isinstance(node, bool | float | str) and not isinstance(node, np.generic):
        return node
    if isinstance(node, int):
        return node if -(2**63) <= node < 2**64 else ["i", str(node)]
    if isinstance(node, np.ndarray):
        return _describe_array(node, path, buffers)
    if isinstance(node, np.generic):
        return ["s", _checked_name(node.dtype, path), node.tobytes()]
    if isinstance(node, bytes | bytearray | memoryview):
        if len(node) <= INLINE_BYTES:
            return bytes(node)
        buffers.append(bytes(node))
        return ["b", len(node)]
    if isinstance(node, dict):
        items: list[Any] = ["d"]
        for key, value in node.items():
            if not isinstance(key, str | int | float | bool | None):
                raise EncodeError(f"component {path}: key {key!r} is a {type(key).__name__}; "
                                  "expected a str or a number")
            items += [key, _describe(value, f"{path}[{key!r}]", buffers)]
        return items
    if type(node) in (list, tuple):
        tag = "l" if type(node) is list else "t"
        return [tag, *(_describe(x, f"{path}[{i}]", buffers) for i, x in enumerate(node))]
    raise EncodeError(
        f"component {path or '(the datapoint itself)'} is a {type(node).__name__}; expected an array, "
        "a number, str, bytes, None, or a list, tuple or dict of these: convert it in a MapData"
    )


def _checked_name(dtype: np.dtype, path: str) -> str:
    name = dtype_name(dtype)
    if name is None:
        raise EncodeError(
            f"component {path or '(the datapoint itself)'} has dtype {dtype}; expected numbers, "
            "fixed-size strings or times: convert it in a MapData (astype, or split its fields)"
        )
    return name


def _describe_array(array: np.ndarray, path: str, buffers: list[Any]) -> list[Any]:
    name = _checked_name(array.dtype, path)
    order = "C"
    if array.flags.f_contiguous and not array.flags.c_contiguous:
        order, array = "F", array.T
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.nbytes else b""
    buffers.append(flat)
    shape = array.shape[::-1] if order == "F" else array.shape
    return ["a", name, list(shape), order]


class _Reader:
    """Walks the header and takes the buffers in the order in which they were written."""

    def __init__(self, view: memoryview, position: int):
        self.view, self.position = view, position

    def take(self, length: int) -> memoryview:
        start = self.position + -self.position % ALIGNMENT
        if length < 0 or start + length > len(self.view):
            raise DecodeError(f"a buffer of {length} bytes reaches past the end of the record")
        self.position = start + length
        return self.view[start : self.position]

    def build(self, node: Any) -> Any:
        if not isinstance(node, list):
            if isinstance(node, dict):
                raise DecodeError("a bare map in the header")
            return node
        tag, *rest = node
        if tag == "a":
            return self._array(*rest)
        if tag == "l":
            return [self.build(child) for child in rest]
        if tag == "t":
            return tuple(self.build(child) for child in rest)
        if tag == "d":
            pairs = zip(rest[::2], rest[1::2], strict=True)
            return {key: self.build(child) for key, child in pairs}
        if tag == "s":
            name, raw = rest
            scalar = np.frombuffer(raw, dtype_from_name(name))
            if scalar.size != 1:
                raise DecodeError(f"a scalar of {scalar.size} elements")
            return scalar[0]
        if tag == "b":
            (length,) = rest
            return bytes(self.take(length))
        if tag == "i":
            (digits,) = rest
            return int(digits)
        raise DecodeError(f"unknown tag {tag!r}")

    def _array(self, name: str, shape: list[int], order: str) -> np.ndarray:
        dtype = dtype_from_name(name)
        if not all(isinstance(size, int) and size >= 0 for size in shape) or order not in ("C", "F"):
            raise DecodeError(f"an array of shape {shape} in order {order!r}")
        raw = self.take(math.prod(shape) * dtype.itemsize)
        if dtype.itemsize == 0:
            return np.zeros(shape, dtype)
        array = np.frombuffer(raw, dtype)
        return array.reshape(shape[::-1]).T if order == "F" else array.reshape(shape)
