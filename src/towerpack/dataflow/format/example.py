"""TFRecord files of `tf.train.Example` records, read and written without TensorFlow.

A record maps names to lists of bytes, 32-bit floats or 64-bit integers; it does not say which shape
and type they stand for. A *feature* does, for reading and for writing.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from towerpack.core.optional import require
from towerpack.core.progress import track
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.format import proto
from towerpack.dataflow.format.files import CorruptRecord, Paths, shard_paths
from towerpack.dataflow.format.images import decode_image, encode_image
from towerpack.dataflow.format.records import (
    OWN_STARTS,
    Format,
    OnError,
    Stored,
    components,
    decode_record,
)
from towerpack.dataflow.format.tfrecord import (
    GZIP_START,
    TFRecordData,
    TFRecordSerializer,
    is_tfrecord,
    write_tfrecord,
)
from towerpack.dataflow.source.iterable import as_flow

Kind = Literal["int64_list", "float_list", "bytes_list"]
KINDS: tuple[Kind, ...] = ("bytes_list", "float_list", "int64_list")
INT64 = np.iinfo(np.int64)
DTYPES: dict[Kind | None, Any] = {"int64_list": np.int64, "float_list": np.float32}


class Feature(Protocol):
    """What a named list of an Example means."""

    @property
    def kind(self) -> Kind:
        """Which of the record's lists holds it."""

    def read(self, values: Sequence[Any] | None, name: str) -> Any:
        """The component; `values` is None if the record lacks it."""

    def write(self, value: Any, name: str) -> Sequence[Any]:
        """The values to store."""


def list_of(dtype: np.dtype) -> Kind:
    """Which of the three lists holds a dtype exactly."""
    if dtype.kind in "iub":
        return "int64_list"
    if dtype.kind == "f" and dtype.itemsize <= 4:
        return "float_list"
    if dtype.kind in "SUO":
        return "bytes_list"
    raise ValueError(
        f"a tf.train.Example holds 64-bit integers, 32-bit floats and bytes, not {dtype}; convert "
        "it, or store its bytes as RawFeature"
    )


@dataclass(frozen=True)
class FixedLenFeature:
    """An array of one shape in all records; `shape=()` gives a scalar.

    `dtype` is the datapoint's; the record has the list that holds it exactly. Strings are bytes in
    the datapoint (`bytes`, or an object array of them). `default` is used if a record lacks the
    feature; without a default that is an error.
    """

    shape: tuple[int, ...] = ()
    dtype: Any = np.int64
    default: Any = None

    @property
    def kind(self) -> Kind:
        return list_of(np.dtype(self.dtype))

    def read(self, values: Sequence[Any] | None, name: str) -> Any:
        if values is None or len(values) == 0 < math.prod(self.shape):
            if self.default is None:
                raise CorruptRecord(f"{name} is missing, and its feature has no default")
            values = np.broadcast_to(self.default, self.shape).reshape(-1).tolist()
        if len(values) != math.prod(self.shape):
            raise CorruptRecord(
                f"{name}: expected {math.prod(self.shape)} values for shape {self.shape}, "
                f"received {len(values)}"
            )
        if self.kind == "bytes_list":
            return values[0] if self.shape == () else _objects(values).reshape(self.shape)
        array = np.array(values, np.dtype(self.dtype)).reshape(self.shape)
        return array[()]

    def write(self, value: Any, name: str) -> Sequence[Any]:
        if np.shape(value) != tuple(self.shape) and not isinstance(value, str | bytes):
            raise ValueError(f"{name}: expected shape {self.shape}, received {np.shape(value)}")
        return stored_values(value, self.kind, name)


@dataclass(frozen=True)
class VarLenFeature:
    """A list of any length: a one-dimensional array, or a list of bytes."""

    dtype: Any = np.int64

    @property
    def kind(self) -> Kind:
        return list_of(np.dtype(self.dtype))

    def read(self, values: Sequence[Any] | None, name: str) -> Any:
        values = [] if values is None else values
        if self.kind == "bytes_list":
            return list(values)
        return np.array(values, np.dtype(self.dtype))

    def write(self, value: Any, name: str) -> Sequence[Any]:
        return stored_values(value, self.kind, name)


@dataclass(frozen=True)
class RawFeature:
    """An array stored as its little-endian bytes, as `tf.io.decode_raw` reads them; exact.

    For dtypes that the record's lists cannot hold (float64, uint64), and for speed.
    """

    shape: tuple[int, ...]
    dtype: Any

    kind: ClassVar[Kind] = "bytes_list"

    def read(self, values: Sequence[Any] | None, name: str) -> Any:
        dtype = np.dtype(self.dtype).newbyteorder("<")
        size = math.prod(self.shape) * dtype.itemsize
        if values is None or len(values) != 1 or len(values[0]) != size:
            found = None if not values else [len(value) for value in values]
            raise CorruptRecord(f"{name}: expected one value of {size} bytes, received {found}")
        array = np.frombuffer(values[0], dtype).reshape(self.shape)
        return array.astype(np.dtype(self.dtype))[()]

    def write(self, value: Any, name: str) -> Sequence[Any]:
        array, dtype = np.asarray(value), np.dtype(self.dtype)
        if array.shape != tuple(self.shape) or not np.can_cast(array.dtype, dtype):
            raise ValueError(
                f"{name}: expected {dtype} of shape {self.shape}, received {array.dtype} of shape "
                f"{array.shape}"
            )
        return [array.astype(dtype.newbyteorder("<")).tobytes()]


@dataclass(frozen=True)
class ImageFeature:
    """A compressed image: HxWx3 (RGB, or BGR with `rgb=False`) or HxWx1 uint8 in the datapoint.

    Written as PNG, which is exact, or as JPEG of a `quality`; bytes are written unchanged.
    """

    channel: int = 3
    rgb: bool = True
    format: Literal["png", "jpeg"] = "png"
    quality: int = 95

    kind: ClassVar[Kind] = "bytes_list"

    def read(self, values: Sequence[Any] | None, name: str) -> Any:
        if values is None or len(values) != 1:
            raise CorruptRecord(f"{name}: expected one image, received {len(values or ())}")
        return decode_image(values[0], name, self.channel, self.rgb)

    def write(self, value: Any, name: str) -> Sequence[Any]:
        if isinstance(value, bytes):
            return [value]
        image = np.asarray(value)
        if image.dtype != np.uint8 or image.shape[2:] not in ((), (1,), (3,)):
            raise ValueError(
                f"{name}: expected an HxW, HxWx1 or HxWx3 uint8 image, received {image.dtype} of "
                f"shape {image.shape}"
            )
        return [encode_image(image, self.format, self.rgb, self.quality)]


Features = Mapping[str, Feature]


def stored_values(value: Any, kind: Kind, name: str) -> Sequence[Any]:
    """The values of a component as a flat list for one of the three lists; exact, or an error."""
    if kind == "bytes_list":
        flat = [value] if isinstance(value, str | bytes) else np.ravel(_objects(value)).tolist()
        return [item.encode() if isinstance(item, str) else bytes(item) for item in flat]
    array = np.asarray(value)
    if kind == "int64_list":
        if array.dtype.kind not in "iub" and array.size:
            raise ValueError(f"{name}: expected integers, received {array.dtype}")
        if array.size and (array.max() > INT64.max or array.min() < INT64.min):
            raise ValueError(f"{name}: {array.max()} does not fit into a 64-bit integer")
        return array.astype(np.int64).ravel().tolist()
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name}: expected numbers, received {array.dtype}")
    return array.astype(np.float32).ravel().tolist()


def infer_features(datapoint: Any) -> dict[str, Feature]:
    """Infers the features of a datapoint; the components of a list are named '0', '1', ...

    >>> infer_features([np.zeros((2, 2), np.float32), 3])
    {'0': FixedLenFeature(shape=(2, 2), dtype=dtype('float32'), default=None),
     '1': FixedLenFeature(shape=(), dtype=<class 'numpy.int64'>, default=None)}
    """
    return {key: _feature_of(value) for key, value in components(datapoint).items()}


def _feature_of(value: Any) -> Feature:
    if isinstance(value, str | bytes):
        return FixedLenFeature((), np.bytes_)
    if isinstance(value, bool | np.bool_):
        return FixedLenFeature((), np.bool_)
    if isinstance(value, int):
        return FixedLenFeature((), np.int64)
    if isinstance(value, float):
        return RawFeature((), np.float64)
    array = np.asarray(value)
    if (array.dtype.kind == "f" and array.dtype.itemsize > 4) or array.dtype == np.uint64:
        return RawFeature(array.shape, array.dtype)
    list_of(array.dtype)
    return FixedLenFeature(array.shape, array.dtype)


def encode_example(datapoint: Mapping[str, Any], features: Features) -> bytes:
    """A serialized `tf.train.Example` of the named components."""
    missing = sorted(set(features) - set(datapoint))
    if missing:
        raise ValueError(f"the datapoint lacks {missing}; it has {sorted(datapoint)}")
    example = proto.example_class()()
    for name in sorted(features):  # equal datapoints give equal bytes
        feature = features[name]
        entry = example.features.feature.add(key=name)
        stored = getattr(entry.value, feature.kind)
        stored.value.extend(feature.write(datapoint[name], f"component {name!r}"))
        stored.SetInParent()  # stores an empty list too
    return example.SerializeToString()


def decode_example(record: Any, name: str, features: Features) -> dict[str, Any]:
    """The components of a serialized Example; `CorruptRecord` names one that does not match."""
    stored = _parsed(record, name)
    datapoint = {}
    for key, feature in features.items():
        where = f"{name}, feature {key!r}"
        kind, values = stored.get(key, (None, None))
        if kind not in (None, feature.kind):
            raise CorruptRecord(f"{where}: expected {feature.kind}, received {kind}")
        datapoint[key] = feature.read(values, where)
    return datapoint


def decode_any_example(record: Any, name: str = "the record") -> dict[str, Any]:
    """Everything in a serialized Example as it is stored: a single value, or several.

    For inspecting files whose features are unknown.
    """
    datapoint: dict[str, Any] = {}
    for key, (kind, stored) in sorted(_parsed(record, name).items()):
        values = np.array(stored, DTYPES[kind]) if kind in DTYPES else list(stored or ())
        datapoint[key] = values[0] if len(values) == 1 else values
    return datapoint


def _parsed(record: Any, name: str) -> dict[str, tuple[Kind | None, Any]]:
    """For each feature of a serialized Example, which of the lists it has, and that list."""
    message = require("google.protobuf.message", extra=proto.EXTRA)
    try:
        entries = proto.example_class().FromString(bytes(record)).features.feature
    except message.DecodeError as error:
        raise CorruptRecord(f"{name} is not a tf.train.Example: {error}") from error
    found: dict[str, tuple[Kind | None, Any]] = {}
    for entry in entries:
        kind = next((kind for kind in KINDS if entry.value.HasField(kind)), None)
        found[entry.key] = kind, getattr(entry.value, kind).value if kind else ()
    return found


def _objects(values: Any) -> np.ndarray:
    if isinstance(values, np.ndarray):
        return values.astype(object)
    flat = list(values)
    made = np.empty(len(flat), object)
    made[:] = flat
    return made


class ExampleData(TFRecordData):
    """`tf.train.Example` records as dicts of the given `features`; otherwise like `TFRecordData`.

    It reads what TensorFlow wrote, and `tf.io.parse_single_example` reads what `write_examples`
    wrote.
    """

    def __init__(
        self,
        paths: Paths,
        features: Features,
        shuffle: bool = False,
        *,
        size: int | None = None,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        proto.example_class()  # without protobuf, this raises the error
        self.features = dict(features)
        decoder = functools.partial(decode_example, features=self.features)
        super().__init__(paths, shuffle, decoder, size=size, seed=seed, on_error=on_error)


def write_examples(
    ds: DataFlow | Iterable[Any],
    path: str | os.PathLike[str],
    features: Features | None = None,
    *,
    shards: int = 1,
    compression: str | None = None,
) -> list[Path]:
    """Writes a flow's datapoints as `tf.train.Example` records; returns the files.

    A datapoint is a dict, or a list whose components get the names '0', '1', ... Without
    `features`, they are inferred from the first datapoint. With several `shards`, datapoint i goes
    to shard i modulo their number. Each file appears when it is whole.
    """
    paths = shard_paths(path, shards)
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(write_tfrecord(p, compression)) for p in paths]
        for i, datapoint in enumerate(track(as_flow(ds), description=f"writing {path}")):
            named = components(datapoint)
            if features is None:
                features = infer_features(datapoint)
            try:
                writers[i % shards].write(encode_example(named, features))
            except ValueError as error:
                error.add_note(f"in datapoint {i}")
                raise
    return paths


def _open_tfrecord(path: Path, on_error: OnError) -> Stored:
    first = next(iter(TFRecordData(path, on_error="skip")), b"")
    if first.startswith(OWN_STARTS):
        flow = TFRecordData(path, decoder=decode_record, on_error=on_error)
        return Stored("TFRecord of datapoints", flow)
    flow = TFRecordData(path, decoder=decode_any_example, on_error=on_error)
    return Stored("TFRecord of tf.train.Example", flow)


TFRECORD = Format(
    "TFRecord",
    _open_tfrecord,
    is_head=lambda head: head.startswith(GZIP_START) or is_tfrecord(head),
    writers=dict.fromkeys((".tfrecord", ".tfrecords"), TFRecordSerializer.save),
)
