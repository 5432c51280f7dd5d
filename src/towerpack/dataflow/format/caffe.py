"""Caffe's LMDB databases."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core.optional import require
from towerpack.dataflow.format import proto
from towerpack.dataflow.format.files import CorruptRecord
from towerpack.dataflow.format.images import decode_image
from towerpack.dataflow.format.lmdb import LMDBData
from towerpack.dataflow.format.records import OnError


class CaffeLMDB(LMDBData):
    """A Caffe LMDB database as `[image, label]`: HxWxC uint8 (BGR, as Caffe stores it) and an int.

    Random access; every record once per epoch. Datums are raw or encoded (JPEG, PNG); those of
    floats give float32. Caffe itself is not needed: `proto` declares the message.
    """

    def __init__(
        self,
        path: str | Path,
        shuffle: bool = False,
        keys: Iterable[bytes | str] | str | None = None,
        *,
        seed: int = 0,
        on_error: OnError = "raise",
    ):
        proto.datum_class()  # without protobuf, this raises the error
        super().__init__(path, shuffle, keys, seed=seed, on_error=on_error)

    def load(self, row: int) -> Any:
        _, value = super().load(row)
        return decode_datum(value, self.where(row))


def decode_datum(value: bytes, name: str = "the datum") -> list[Any]:
    """`[image, label]` of a serialized `caffe.Datum`; `CorruptRecord` names a damaged one."""
    message = require("google.protobuf.message", extra=proto.EXTRA)
    try:
        datum = proto.datum_class().FromString(value)
    except message.DecodeError as error:
        raise CorruptRecord(f"{name} is not a caffe.Datum: {error}") from error
    if datum.encoded:
        return [decode_image(datum.data, name), int(datum.label)]
    shape = (datum.channels, datum.height, datum.width)
    if datum.float_data:
        pixels = np.array(datum.float_data, np.float32)
    else:
        pixels = np.frombuffer(datum.data, np.uint8)
    if min(shape) < 0 or pixels.size != math.prod(shape):
        raise CorruptRecord(
            f"{name}: a datum of {shape[0]} channels, {shape[1]}x{shape[2]}, should have "
            f"{math.prod(shape)} values, but has {pixels.size}"
        )
    return [np.ascontiguousarray(pixels.reshape(shape).transpose(1, 2, 0)), int(datum.label)]


def encode_datum(image: np.ndarray, label: int = 0) -> bytes:
    """A `caffe.Datum` with the raw pixels of an HxWxC or HxW uint8 image."""
    image = np.asarray(image)
    if image.ndim == 2:
        image = image[:, :, np.newaxis]
    if image.ndim != 3 or image.dtype != np.uint8:
        raise ValueError(
            f"expected an HxW or HxWxC uint8 image, received {image.dtype} of shape {image.shape}"
        )
    datum = proto.datum_class()(
        channels=image.shape[2],
        height=image.shape[0],
        width=image.shape[1],
        data=image.transpose(2, 0, 1).tobytes(),
        label=int(label),
    )
    return datum.SerializeToString()
