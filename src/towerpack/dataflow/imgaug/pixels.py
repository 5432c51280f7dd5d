"""Arithmetic on pixels: what uint8 images need (rounded, clipped) done by OpenCV's quick loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from towerpack.dataflow.imgaug.opencv import channels, checked_colours, opencv

WHITE = 255.0
RAMP = np.arange(256, dtype=np.float32)  # every value that a uint8 pixel has


def to_dtype(values: np.ndarray, dtype: np.dtype, clip: bool) -> np.ndarray:
    """Computed pixels as an image of `dtype`: integers are rounded and clipped in any case."""
    if values.dtype == np.uint8 == dtype:
        return values
    if dtype.kind in "iu":
        return np.clip(np.rint(values), 0, WHITE).astype(dtype)
    if clip:
        values = np.clip(values, 0, WHITE)
    return values.astype(dtype, copy=False)


def working_float(img: np.ndarray) -> np.ndarray:
    """A float32 image as it is, a float64 one too, and anything else as float32."""
    if img.dtype == np.float32 or img.dtype == np.float64:
        return img
    return img.astype(np.float32)


def scale_and_add(img: np.ndarray, factor: float, offset: float, clip: bool) -> np.ndarray:
    """Img * factor + offset."""
    if img.dtype != np.uint8:
        return to_dtype(working_float(img) * factor + offset, img.dtype, clip)
    if channels(img) == 3:  # twice as quick as the other way
        return opencv().transform(img, diagonal((factor,) * 3, (offset,) * 3))
    flat = img.reshape(len(img), -1)
    return opencv().addWeighted(flat, factor, flat, 0, offset).reshape(img.shape)


def diagonal(factors: Sequence[float], offsets: Sequence[float]) -> np.ndarray:
    """The 3 x 4 matrix that scales each channel and adds to it."""
    (a, b, c), (x, y, z) = factors, offsets
    return np.array([(a, 0, 0, x), (0, b, 0, y), (0, 0, c, z)], np.float64)


def mix_colours(img: np.ndarray, matrix: np.ndarray, clip: bool) -> np.ndarray:
    """Each pixel's three colours times a 3 x 3 matrix; a fourth column is added."""
    checked_colours(img, "this colour augmentor")
    if img.dtype == np.uint8:
        return opencv().transform(img, matrix)
    return to_dtype(opencv().transform(working_float(img), matrix), img.dtype, clip)


def map_values(
    img: np.ndarray, func: Callable[[np.ndarray], np.ndarray], clip: bool = True
) -> np.ndarray:
    """A function of single values; for uint8 it is computed 256 times, whatever the image's size.

    It is given a float array: 256 x 1 values, or the image itself; what it returns may have a last
    axis of channels.
    """
    if img.dtype != np.uint8:
        return to_dtype(func(working_float(img)), img.dtype, clip)
    table = to_dtype(func(RAMP[:, None]), img.dtype, clip)
    return look_up(img, table)


def look_up(img: np.ndarray, table: np.ndarray) -> np.ndarray:
    """table[value] for every value of a uint8 image; a 256 x C table has a column per channel."""
    if table.ndim == 2 and table.shape[1] > 1:
        return opencv().LUT(img, table.reshape(1, 256, -1)).reshape(img.shape)
    return opencv().LUT(img.reshape(len(img), -1), table.reshape(256)).reshape(img.shape)


def as_uint8(img: np.ndarray) -> np.ndarray:
    return img if img.dtype == np.uint8 else to_dtype(img, np.dtype(np.uint8), clip=True)


def through_uint8(img: np.ndarray, func: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """A function that exists for uint8 only, on an image of any dtype."""
    result = func(as_uint8(img))
    return result if result.dtype == img.dtype else result.astype(img.dtype)
