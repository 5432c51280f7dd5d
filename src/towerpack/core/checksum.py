"""CRC-32C, also as TensorFlow's file formats store it: TFRecord, event files, checkpoints."""

from __future__ import annotations

from typing import Any

import google_crc32c
import numpy as np

MASK_DELTA = 0xA282EAD8


def crc32c(data: Any) -> int:
    """The CRC-32C of a bytes-like object."""
    # google_crc32c accepts bytes and arrays, but neither bytearrays nor memoryviews.
    return int(google_crc32c.value(data if type(data) is bytes else np.frombuffer(data, np.uint8)))


def masked_crc(data: Any) -> int:
    """The CRC-32C as these formats store it, since the CRC of data that contains CRCs is weak."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + MASK_DELTA) & 0xFFFFFFFF
