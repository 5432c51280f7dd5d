"""The checksum of TensorFlow's file formats: TFRecord, event files and checkpoints."""

from __future__ import annotations

from typing import Any

import google_crc32c
import numpy as np

MASK_DELTA = 0xA282EAD8


def masked(crc: int) -> int:
    """A CRC-32C as these formats store it: the CRC of data that contains CRCs would be weak."""
    return (((crc >> 15) | (crc << 17)) + MASK_DELTA) & 0xFFFFFFFF


def masked_crc(data: Any) -> int:
    """The masked CRC-32C of a bytes-like object."""
    # google_crc32c accepts bytes and arrays, but neither bytearrays nor memoryviews.
    return masked(
        google_crc32c.value(data if type(data) is bytes else np.frombuffer(data, np.uint8))
    )
