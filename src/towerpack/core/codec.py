"""Datapoints as bytes: a msgpack header, the raw buffers and a checksum; never pickle.

The layout is little-endian. Every buffer is aligned to 64 bytes from the start, so that arrays can
be used in place:

    magic 'TPK1' | crc32c of all that follows | header length | payload length | header | buffers

These values come back exactly as they were: nested lists, tuples and dicts; arrays of any
fixed-size dtype in their byte order and memory order; numpy and Python scalars; str, bytes and
None. Anything else raises an `EncodeError` that names the component.

`decode` does not trust its input, since anyone who can write bytes can also write the right
checksum. It checks every length before it uses it, accepts only dtypes of a fixed list, and
imports, opens and calls nothing that the data names. It raises `DecodeError` and nothing else. Its
memory is bounded by the size of the record: arrays are views of it, and reading the header, of at
most `MAX_HEADER` bytes, takes at most about a hundred times its length.
"""

from __future__ import annotations

import functools
import math
import re
import struct
import sys
from types import ModuleType
from typing import Any, Literal

import google_crc32c
import msgspec
import numpy as np

from towerpack.core.checksum import crc32c

ml_dtypes: ModuleType | None
try:
    # Imported here, because decoding must not import anything.
    import ml_dtypes
except ImportError:
    ml_dtypes = None

MAGIC = b"TPK1"
ALIGNMENT = 64  # a cache line, and enough for any vector load
MAX_HEADER = 1 << 22  # enough for 100,000 leaves; a byte can become an object of a hundred bytes
INLINE_BYTES = 256  # shorter bytes and strings are in the header: aligning them would cost more
EXTENSION_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4")

_PREFIX = struct.Struct("<4sIIQ")
_LENGTHS = struct.Struct("<IQ")
_CHECKSUM = slice(4, 8)  # covers everything after it
_PADDING = [bytes(size) for size in range(ALIGNMENT)]
_NATIVE_KINDS = "biufcSUVmM"
# What `dtype.str` is for these kinds. numpy would accept far more, and evaluate some of it.
_DTYPE_NAME = re.compile(r"[<>|]([biufcSUVmM])[0-9]{1,10}(\[[0-9]{0,10}[a-zA-Z]{1,2}\])?")
_ITSELF = frozenset({type(None), bool, float})  # nodes that msgpack preserves exactly
_LEAVES = frozenset({type(None), bool, float, int, str, bytes})
_KEYS = frozenset({type(None), bool, float, int, str})
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()


class EncodeError(ValueError):
    """A datapoint holds a value that cannot be encoded; the message names the component."""


class DecodeError(ValueError):
    """The bytes are not a record of this codec, or are damaged."""


class DamagedRecord(DecodeError):
    """The bytes are not those that `encode` returned: magic, length or checksum are wrong."""


def encode(tree: Any) -> bytes:
    """Encodes the datapoint as one bytes object.

    >>> decode(encode([np.arange(3), {"label": 1}]))
    [array([0, 1, 2]), {'label': 1}]
    """
    return b"".join(encode_parts(tree))


def encode_parts(tree: Any) -> list[Any]:
    """The same bytes as a list of buffers that refer to the arrays, for a gathering write."""
    buffers: list[Any] = []
    try:
        header = _encoder.encode(_describe(tree, buffers))
    except _Refused as refused:
        _name_refused(tree, "")
        raise EncodeError(str(refused)) from refused
    except RecursionError:
        raise EncodeError("the datapoint is nested too deep, or contains itself") from None
    if len(header) > MAX_HEADER:
        raise EncodeError(
            f"the datapoint has too many leaves: their description takes {len(header)} bytes, and "
            f"at most {MAX_HEADER} are allowed; stack the leaves into arrays"
        )
    parts: list[Any] = [header]
    start = position = _PREFIX.size + len(header)
    for buffer in buffers:
        padding = -position % ALIGNMENT
        parts.append(_PADDING[padding])
        parts.append(buffer)
        position += padding + len(buffer)
    checksum = google_crc32c.value(_LENGTHS.pack(len(header), position - start))
    for part in parts:
        checksum = google_crc32c.extend(checksum, part)
    return [_PREFIX.pack(MAGIC, checksum, len(header), position - start), *parts]


def decode(data: Any) -> Any:
    """Decodes the datapoint. Its arrays are views of `data`, writable if `data` is.

    An array is copied if it is not aligned for its dtype, because `data` begins at an odd address.
    """
    try:
        view = memoryview(data).cast("B")
        size = len(view)
        if size < _PREFIX.size:
            raise DamagedRecord(f"expected at least {_PREFIX.size} bytes, received {size}")
        magic, checksum, header_length, payload_length = _PREFIX.unpack_from(view)
        if magic != MAGIC:
            raise DamagedRecord(f"expected a record that begins with {MAGIC!r}, received {magic!r}")
        start = _PREFIX.size + header_length
        if header_length > MAX_HEADER or start + payload_length != size:
            raise DamagedRecord(
                f"expected {start + payload_length} bytes according to the record's head, received "
                f"{size}: the record may be truncated"
            )
        found = crc32c(view[_CHECKSUM.stop :])
        if found != checksum:
            raise DamagedRecord(f"expected the checksum {checksum:08x}, received {found:08x}")
        reader = _Reader(view, start)
        tree = reader.build(_decoder.decode(view[_PREFIX.size : start]))
        if reader.position != size:
            raise DecodeError(f"received {size - reader.position} more bytes than expected")
        return tree
    except DecodeError:
        raise
    except Exception as error:  # crafted bytes may cause any error
        raise DecodeError(f"malformed record: {error}") from error


def checksum_of(record: Any) -> int:
    """The checksum in a record, which is not verified; it distinguishes two records."""
    return int.from_bytes(record[_CHECKSUM], "little")


def dtype_name(dtype: np.dtype) -> str | None:
    """The portable name of a dtype, with its byte order; None if it has no fixed meaning."""
    if dtype.name in EXTENSION_DTYPES:
        return dtype.name
    if dtype.kind in _NATIVE_KINDS and dtype.fields is None and dtype.subdtype is None:
        return dtype.str
    return None


def dtype_from_name(name: str) -> np.dtype:
    if name in EXTENSION_DTYPES:
        if ml_dtypes is None:
            raise DecodeError(
                f"dtype {name} needs the package ml_dtypes, which is not installed; "
                "run: pip install ml_dtypes"
            )
        return np.dtype(getattr(ml_dtypes, name))
    if not _DTYPE_NAME.fullmatch(name):
        raise DecodeError(f"the dtype {name!r} is not allowed")
    dtype = np.dtype(name)
    if dtype_name(dtype) != name:
        raise DecodeError(f"the dtype {name!r} is not allowed")
    return dtype


# Each would take most of the time of a small record, and a data set has only a few dtypes.
_cached_name = functools.lru_cache(maxsize=256)(dtype_name)
_cached_dtype = functools.lru_cache(maxsize=256)(dtype_from_name)


class _Refused(Exception):
    """A node cannot be encoded. Only then is its path determined, since that takes time."""


def _describe(node: Any, buffers: list[Any]) -> Any:
    """The header's node for a subtree; large values are appended to `buffers`."""
    kind = type(node)
    if kind in _ITSELF:
        return node
    if kind is np.ndarray:
        return _describe_array(node, buffers)
    if kind is list:
        return ["l", *[_describe(child, buffers) for child in node]]
    if kind is tuple:
        return ["t", *[_describe(child, buffers) for child in node]]
    if isinstance(node, np.generic):
        # numpy returns one zero character for an empty string, although its itemsize is 0.
        return ["s", _checked_name(node.dtype), node.tobytes() if node.itemsize else b""]
    if isinstance(node, np.ndarray):  # a subclass, such as a memory map, which is not preserved
        return _describe_array(np.asarray(node), buffers)
    if isinstance(node, int):
        return int(node) if -(2**63) <= node < 2**64 else ["i", hex(node)]
    if isinstance(node, str):
        return _describe_text(node, buffers)
    if isinstance(node, bytes | bytearray | memoryview):
        content = bytes(node)
        if len(content) <= INLINE_BYTES:
            return content
        buffers.append(content)
        return ["b", len(content)]
    if isinstance(node, dict):
        items: list[Any] = ["d"]
        for key, value in node.items():
            if type(key) not in _KEYS or (type(key) is int and not -(2**63) <= key < 2**64):
                raise _Refused(
                    f"has the key {key!r} ({type(key).__name__}); expected a str or a number of at "
                    "most 64 bits"
                )
            items += [key, _describe(value, buffers)]
        return items
    raise _Refused(
        f"is a {kind.__name__}; expected an array, a number, str, bytes, None, or a list, tuple or "
        "dict of these: convert it in a MapData"
    )


def _describe_text(node: str, buffers: list[Any]) -> Any:
    try:
        content = node.encode()
    except UnicodeEncodeError as error:
        raise _Refused(f"is a str that is not valid Unicode ({error.reason}): send bytes") from None
    if len(content) <= INLINE_BYTES:
        return str(node)
    buffers.append(content)
    return ["u", len(content)]


def _describe_array(array: np.ndarray, buffers: list[Any]) -> list[Any]:
    name = _checked_name(array.dtype)
    shape = array.shape
    order = "C"
    if not array.flags.c_contiguous:
        if array.flags.f_contiguous:
            order, array = "F", array.T
        else:
            array = np.ascontiguousarray(array)
    buffers.append(array.reshape(-1).view(np.uint8) if array.nbytes else b"")
    return ["a", name, shape, order]


def _checked_name(dtype: np.dtype) -> str:
    name = _cached_name(dtype)
    if name is None:
        raise _Refused(
            f"has dtype {dtype}; expected numbers, fixed-size strings or times: convert it in a "
            "MapData (astype, or split its fields)"
        )
    return name


def _name_refused(node: Any, path: str) -> None:
    """Raises an EncodeError for the first node that cannot be encoded."""
    children: Any = ()
    if isinstance(node, dict):
        children = node.items()
    elif type(node) in (list, tuple):
        children = enumerate(node)
    for key, child in children:
        _name_refused(child, f"{path}[{key!r}]")
    try:
        _describe(node, [])
    except _Refused as refused:
        raise EncodeError(f"component {path or '(the datapoint itself)'} {refused}") from None


class _Reader:
    """Walks the header and reads the buffers in the order in which they were written."""

    def __init__(self, view: memoryview, position: int):
        self.view, self.position = view, position

    def skip(self, length: int) -> int:
        """The position of a buffer of this length; the next one begins after it."""
        start = self.position + -self.position % ALIGNMENT
        if length < 0 or start + length > len(self.view):
            raise DecodeError(f"a buffer of {length} bytes extends past the end of the record")
        self.position = start + length
        return start

    def build(self, node: Any) -> Any:
        kind = type(node)
        if kind is not list:
            if kind in _LEAVES:
                return node
            raise DecodeError(f"a {kind.__name__} in the header")  # such as a map or a time stamp
        tag = node[0]
        if tag == "a":
            return self._array(*node[1:])
        if tag == "l":
            return [self.build(child) for child in node[1:]]
        if tag == "t":
            return tuple([self.build(child) for child in node[1:]])
        if tag == "s":
            return _scalar(*node[1:])
        if tag == "d":
            return self._dict(node)
        if tag == "b":
            return self._bytes(*node[1:])
        if tag == "u":
            return str(self._bytes(*node[1:]), "utf-8")
        if tag == "i":
            return int(node[1], 16)
        raise DecodeError(f"unknown tag {tag!r}")

    def _array(self, name: str, shape: list[int], order: Literal["C", "F"]) -> np.ndarray:
        dtype = _cached_dtype(name)
        for size in shape:
            if type(size) is not int or size < 0:
                raise DecodeError(f"an array of shape {shape}")
        length = math.prod(shape) * dtype.itemsize
        start = self.skip(length)
        if not dtype.itemsize and math.prod(shape) > MAX_HEADER:
            # A few bytes could claim any size, and a copy takes at least a byte for each element.
            raise DecodeError(f"an array of shape {shape} and dtype {name} without bytes")
        if order != "C" and order != "F":
            raise DecodeError(f"an array in order {order!r}")
        if dtype.kind == "U":
            _check_text(self.view[start : start + length], dtype)
        array = np.ndarray(shape, dtype, self.view, start if length else 0, order=order)
        return array if array.flags.aligned else array.copy(order)

    def _bytes(self, length: int) -> bytes:
        if type(length) is not int:
            raise DecodeError(f"a length of {length!r}")
        start = self.skip(length)
        return bytes(self.view[start : start + length])

    def _dict(self, node: list[Any]) -> dict[Any, Any]:
        keys = node[1::2]
        if not _KEYS.issuperset(map(type, keys)):
            raise DecodeError("a dict with a key that is neither a str nor a number")
        result = {key: self.build(child) for key, child in zip(keys, node[2::2], strict=True)}
        if len(result) != len(keys):
            raise DecodeError("a dict with the same key twice")
        return result


def _scalar(name: str, raw: bytes) -> Any:
    dtype = _cached_dtype(name)
    if type(raw) is not bytes or len(raw) != dtype.itemsize:
        raise DecodeError(f"a scalar of dtype {name} with the content {raw!r:.80}")
    if dtype.kind == "U":
        _check_text(raw, dtype)
    return np.ndarray((), dtype, raw or b"\0")[()]


def _check_text(raw: Any, dtype: np.dtype) -> None:
    """Refuses invalid characters, for which Python raises only when the element is read."""
    codes = np.dtype(np.uint32).newbyteorder(dtype.byteorder)
    if len(raw) and np.frombuffer(raw, codes).max() > sys.maxunicode:
        raise DecodeError(f"text with a character beyond {sys.maxunicode:#x}")
