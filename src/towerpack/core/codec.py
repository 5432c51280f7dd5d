"""Datapoints as bytes: a msgpack header, the raw buffers, a checksum; never pickle.

Layout, little-endian, every buffer aligned to 64 bytes from the start so that arrays can be used
in place:

    magic 'TPK1' | crc32c of all that follows | header length | payload length | header | buffers

What goes in comes out exact: nested lists, tuples and dicts; arrays of any fixed-size dtype in
their byte order and memory order; numpy and Python scalars; str, bytes, None. What cannot is
refused by `EncodeError` with the component's path.

`decode` believes nothing, since whoever can write bytes can also write a fitting checksum. It
compares every length with what is there before it uses it, takes dtypes from a closed list,
imports, opens and calls nothing that the data names, and raises `DecodeError` and nothing else. Its
memory is bounded by the size of the record: arrays are views of it, and the header, at most
`MAX_HEADER`, costs at most about a hundred times its length while it is being read.
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

ml_dtypes: ModuleType | None
try:
    # Here, not where data asks for it: decoding must not import anything.
    import ml_dtypes
except ImportError:
    ml_dtypes = None

MAGIC = b"TPK1"
ALIGNMENT = 64  # a cache line, and enough for any vector load
MAX_HEADER = 1 << 22  # describes 100,000 leaves; one byte can become a Python object of a hundred
INLINE_BYTES = 256  # shorter bytes and strings travel in the header: aligning them would cost more
EXTENSION_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4")

_PREFIX = struct.Struct("<4sIIQ")
_LENGTHS = struct.Struct("<IQ")
_CHECKSUM = slice(4, 8)  # covers all that comes behind it
_PADDING = [bytes(size) for size in range(ALIGNMENT)]
_NATIVE_KINDS = "biufcSUVmM"
# What `dtype.str` gives for these kinds. numpy would understand far more, and evaluate some of it.
_DTYPE_NAME = re.compile(r"[<>|]([biufcSUVmM])[0-9]{1,10}(\[[0-9]{0,10}[a-zA-Z]{1,2}\])?")
_ITSELF = frozenset({type(None), bool, float})  # nodes that msgpack carries exactly as they are
_LEAVES = frozenset({type(None), bool, float, int, str, bytes})
_KEYS = frozenset({type(None), bool, float, int, str})
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()


class EncodeError(ValueError):
    """A datapoint holds something that the codec cannot carry; the message names the component."""


class DecodeError(ValueError):
    """Bytes are not a record of this codec, or are damaged."""


class DamagedRecord(DecodeError):
    """Not the bytes that `encode` made: the mark, a length or the checksum does not fit."""


def encode(tree: Any) -> bytes:
    """The datapoint as one bytes object.

    >>> decode(encode([np.arange(3), {"label": 1}]))
    [array([0, 1, 2]), {'label': 1}]
    """
    return b"".join(encode_parts(tree))


def encode_parts(tree: Any) -> list[Any]:
    """The same bytes as a list of buffers, arrays by reference: for a gathering write."""
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
            f"the description of this datapoint takes {len(header)} bytes, at most {MAX_HEADER} "
            "are allowed; it has too many leaves: stack them into arrays"
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
    """The datapoint. Its arrays are views of `data`, writable if `data` is.

    An array whose place in memory does not suit its dtype (`data` itself begins at an odd address)
    is copied.
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
                f"the record says {start + payload_length} bytes, received {size}: truncated?"
            )
        # Through numpy, since google_crc32c does not take a memoryview.
        found = google_crc32c.value(np.frombuffer(view, np.uint8, offset=_CHECKSUM.stop))
        if found != checksum:
            raise DamagedRecord(f"checksum {found:08x} instead of {checksum:08x}: damaged data")
        reader = _Reader(view, start)
        tree = reader.build(_decoder.decode(view[_PREFIX.size : start]))
        if reader.position != size:
            raise DecodeError(f"{size - reader.position} bytes are left over")
        return tree
    except DecodeError:
        raise
    except Exception as error:  # whatever bytes that were made on purpose lead to
        raise DecodeError(f"malformed record: {error}") from error


def checksum_of(record: Any) -> int:
    """The checksum that a record carries, unchecked: it tells two records apart."""
    return int.from_bytes(record[_CHECKSUM], "little")


def dtype_name(dtype: np.dtype) -> str | None:
    """The portable name of a dtype, byte order included; None for one that has no fixed meaning."""
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
        raise DecodeError(f"dtype {name!r} is not allowed")
    dtype = np.dtype(name)
    if dtype_name(dtype) != name:
        raise DecodeError(f"dtype {name!r} is not allowed")
    return dtype


# Both directions take longer than the rest of a small record's work; a data set has a few dtypes.
_cached_name = functools.lru_cache(maxsize=256)(dtype_name)
_cached_dtype = functools.lru_cache(maxsize=256)(dtype_from_name)


class _Refused(Exception):
    """A node that cannot be encoded. The path is found only then: building it all along costs."""


def _describe(node: Any, buffers: list[Any]) -> Any:
    """The header's node for a subtree; what is large is appended to `buffers`."""
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
        # An empty string's bytes are one zero character to numpy, against its itemsize of 0.
        return ["s", _checked_name(node.dtype), node.tobytes() if node.itemsize else b""]
    if isinstance(node, np.ndarray):  # a memory map, say; its class stays behind
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
                    f"has the key {key!r} ({type(key).__name__}); expected keys that are "
                    "str or numbers of at most 64 bits"
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
        raise _Refused(f"is a str that is no valid Unicode ({error.reason}): send bytes") from None
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
    """Raises the EncodeError of the first node that is refused."""
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
    """Walks the header and takes the buffers in the order in which they were written."""

    def __init__(self, view: memoryview, position: int):
        self.view, self.position = view, position

    def take(self, length: int) -> int:
        """Where a buffer of this length begins; the next one begins behind it."""
        start = self.position + -self.position % ALIGNMENT
        if length < 0 or start + length > len(self.view):
            raise DecodeError(f"a buffer of {length} bytes reaches past the end of the record")
        self.position = start + length
        return start

    def build(self, node: Any) -> Any:
        kind = type(node)
        if kind is not list:
            if kind in _LEAVES:
                return node
            raise DecodeError(f"a {kind.__name__} in the header")  # a bare map, a time stamp, ...
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
            return _big_integer(*node[1:])
        raise DecodeError(f"unknown tag {tag!r}")

    def _array(self, name: str, shape: list[int], order: Literal["C", "F"]) -> np.ndarray:
        dtype = _cached_dtype(name)
        for size in shape:
            if type(size) is not int or size < 0:
                raise DecodeError(f"an array of shape {shape}")
        length = math.prod(shape) * dtype.itemsize
        start = self.take(length)
        if not dtype.itemsize and math.prod(shape) > MAX_HEADER:
            # No bytes vouch for its size, and whoever copies it gives each element at least one.
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
        start = self.take(length)
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
    """Refuses what is no character: Python would raise, but only when the element is read."""
    codes = np.dtype(np.uint32).newbyteorder(dtype.byteorder)
    if len(raw) and np.frombuffer(raw, codes).max() > sys.maxunicode:
        raise DecodeError(f"text with a character beyond {sys.maxunicode:#x}")


def _big_integer(digits: str) -> int:
    if type(digits) is not str:
        raise DecodeError(f"an integer with the digits {digits!r:.80}")
    return int(digits, 16)
