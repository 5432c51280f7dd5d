"""Images from bytes: whole, or an error that names them."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from towerpack.core.optional import require
from towerpack.dataflow.format.corrupt import CorruptRecord

JPEG_START = b"\xff\xd8\xff"
ORIENTATION_TAG = 0x0112
EXIF_SEARCH = 1 << 16  # the EXIF segment is one of the first, and at most 64 KB long


def decode_image(data: Any, name: str = "the image", channel: int = 3, rgb: bool = False) -> Any:
    """The uint8 image in the bytes of a JPEG, PNG, ... file: HxWx3 (BGR, or RGB), or HxWx1.

    A truncated or damaged one is a `CorruptRecord` that says `name`; there is never a half-gray
    picture. JPEGs are decoded by libjpeg-turbo in its strict mode, all else by OpenCV. An EXIF
    orientation is applied.
    """
    if channel not in (1, 3):
        raise ValueError(f"expected channel 1 or 3, received {channel!r}")
    data = bytes(data)
    image = _decode_jpeg(data, name, channel, rgb) if data.startswith(JPEG_START) else None
    if image is None:
        image = _decode_by_opencv(data, name, channel, rgb)
    return image[:, :, np.newaxis] if image.ndim == 2 else image


def _decode_jpeg(data: bytes, name: str, channel: int, rgb: bool) -> np.ndarray | None:
    """None for the kinds that libjpeg-turbo does not convert itself (CMYK)."""
    simplejpeg = require("simplejpeg", extra="image")
    try:
        _, _, space, _ = simplejpeg.decode_jpeg_header(data)
        if space in ("CMYK", "YCCK"):
            return None
        wanted = "GRAY" if channel == 1 else "RGB" if rgb else "BGR"
        image = simplejpeg.decode_jpeg(data, wanted)
    except ValueError as error:
        raise CorruptRecord(f"{name} is a damaged or truncated JPEG: {error}") from error
    return turned(image, exif_orientation(data))


def _decode_by_opencv(data: bytes, name: str, channel: int, rgb: bool) -> np.ndarray:
    cv2 = require("cv2", extra="image")
    mode = cv2.IMREAD_GRAYSCALE if channel == 1 else cv2.IMREAD_COLOR
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), mode) if data else None
    except cv2.error as error:
        raise CorruptRecord(f"{name} cannot be decoded: {error}") from error
    if image is None:
        raise CorruptRecord(
            f"{name} ({len(data)} bytes, beginning with {data[:8].hex(' ')}) is no image, or is "
            "truncated"
        )
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB) if rgb and channel == 3 else image


def exif_orientation(data: bytes) -> int:
    """How a JPEG's camera was held, 1 to 8; 1, upright, where it does not say."""
    start = data.find(b"Exif\0\0", 0, EXIF_SEARCH)
    if start < 0:
        return 1
    tiff = data[start + 6 : start + 6 + EXIF_SEARCH]
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    try:
        if order is None:
            return 1
        (directory,) = struct.unpack_from(f"{order}I", tiff, 4)
        (entries,) = struct.unpack_from(f"{order}H", tiff, directory)
        for number in range(entries):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", tiff, directory + 2 + 12 * number)
            if tag == ORIENTATION_TAG:
                return value if 1 <= value <= 8 else 1
    except struct.error:  # a damaged EXIF block does not make the picture worse
        return 1
    return 1


def turned(image: np.ndarray, orientation: int) -> np.ndarray:
    """The picture as it should be seen, given how the camera was held."""
    if orientation == 1:
        return image
    if orientation in (5, 6, 7, 8):
        image = image.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    return np.ascontiguousarray(image)
