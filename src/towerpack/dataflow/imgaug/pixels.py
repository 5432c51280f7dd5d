"""OpenCV, and arithmetic on pixels that keeps an image's dtype and number of axes.

OpenCV is imported with the first image. It drops a last axis of one channel, supports few dtypes,
and some of its functions take at most four channels. The functions here return the dtype and the
number of axes that they were given. uint8 results are rounded and clipped, by OpenCV's fast loops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from towerpack.core.optional import require

# OpenCV's numbers, so that its constants can be passed and defaults of arguments do not import it.
INTER_NEAREST = 0
INTER_LINEAR = 1
INTER_AREA = 3
INTER_NEAREST_EXACT = 6  # takes the middle pixel where INTER_NEAREST takes the upper left one

BORDER_CONSTANT = 0
BORDER_REPLICATE = 1

MOST_CHANNELS = 4  # the constant that fills a border is a cv::Scalar, which has four

WARPABLE = "BHhfd"  # dtypes by numpy's letters: uint8, uint16, int16, float32, float64

Colour = float | Sequence[float]
Values = Sequence[float] | np.ndarray

WHITE = 255.0

RAMP = np.arange(256, dtype=np.float32)  # every value that a uint8 pixel has


@functools.cache
def opencv() -> Any:
    """The module cv2."""
    return require("cv2", extra="image")


def checked_image(img: Any) -> np.ndarray:
    """Returns the image, or raises an error that states what an image is."""
    return _checked_array(img, (2, 3), "a non-empty image, H x W[ x C]")


def checked_batch(images: Any) -> np.ndarray:
    return _checked_array(images, (3, 4), "a batch of images, N x H x W[ x C], from a BatchData")


def _checked_array(img: Any, axes: tuple[int, int], expected: str) -> np.ndarray:
    if not isinstance(img, np.ndarray):
        raise TypeError(f"expected {expected} as an array, received {type(img).__name__}")
    if img.ndim in axes and img.dtype.kind in "uif" and img.size:
        return img
    raise TypeError(
        f"expected {expected}, of uint8 or of floats in [0, 255], received {img.dtype} of shape "
        f"{img.shape}; convert it in a MapData first"
    )


def channels(img: np.ndarray) -> int:
    return 1 if img.ndim == 2 else img.shape[2]


def checked_colours(img: np.ndarray, asked_by: str) -> None:
    if img.ndim != 3 or img.shape[2] != 3:
        raise ValueError(
            f"{asked_by} expected an image with 3 colour channels, received shape {img.shape}; "
            "convert it with ColorSpace, or leave the augmentor out"
        )


def scalar(value: Colour) -> tuple[float, ...]:
    """A colour for OpenCV, which would use a plain number for the first channel only."""
    if isinstance(value, int | float | np.number):
        return (float(value),) * MOST_CHANNELS
    colour = tuple(float(x) for x in value)
    return colour + (0.0,) * (MOST_CHANNELS - len(colour))


def keep_axes(result: np.ndarray, img: np.ndarray) -> np.ndarray:
    """Restores the axis of one channel, which OpenCV drops."""
    return result[:, :, None] if result.ndim < img.ndim else result


def on_pixels(
    function: Callable[[np.ndarray], np.ndarray], img: np.ndarray, exact: bool = False
) -> np.ndarray:
    """Applies a function of OpenCV that moves pixels, for any dtype and number of channels.

    With `exact` the values are labels: 64-bit integers are converted to float64, not to float32.
    """
    dtype = img.dtype
    if dtype == np.bool_:
        img = img.view(np.uint8)
    elif dtype.char not in WARPABLE:
        img = img.astype(np.float64 if exact and dtype.kind in "iu" else np.float32)
    if channels(img) > MOST_CHANNELS:
        parts = [img[:, :, i : i + MOST_CHANNELS] for i in range(0, img.shape[2], MOST_CHANNELS)]
        result = np.concatenate([keep_axes(function(part), part) for part in parts], axis=2)
    else:
        result = keep_axes(function(img), img)
    return result.astype(dtype, copy=False)


def size_of(img: np.ndarray) -> tuple[int, int]:
    return img.shape[0], img.shape[1]


def shape2d(shape: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) from one number or two."""
    pair = (shape, shape) if isinstance(shape, int | np.integer) else tuple(shape)
    if len(pair) != 2 or not all(isinstance(x, int | np.integer) and x > 0 for x in pair):
        raise ValueError(f"expected a size or (height, width) in pixels, received {shape!r}")
    return int(pair[0]), int(pair[1])


def to_dtype(values: np.ndarray, dtype: np.dtype, clip: bool) -> np.ndarray:
    """Converts computed pixels to `dtype`; integers are always rounded and clipped."""
    if values.dtype == np.uint8 == dtype:
        return values
    if dtype.kind in "iu":
        return np.clip(np.rint(values), 0, WHITE).astype(dtype)
    if clip:
        values = np.clip(values, 0, WHITE)
    return values.astype(dtype, copy=False)


def working_depth(img: np.ndarray) -> np.ndarray:
    """A uint8 image as it is, any other as floats."""
    return img if img.dtype == np.uint8 else working_float(img)


def working_float(img: np.ndarray) -> np.ndarray:
    """A float32 or float64 image as it is, any other as float32."""
    if img.dtype == np.float32 or img.dtype == np.float64:
        return img
    return img.astype(np.float32)


def scale_and_add(img: np.ndarray, factor: float, offset: float, clip: bool) -> np.ndarray:
    """Img * factor + offset."""
    if img.dtype != np.uint8:
        return to_dtype(working_float(img) * factor + offset, img.dtype, clip)
    if channels(img) == 3:  # twice as fast as the code below
        return opencv().transform(img, diagonal((factor,) * 3, (offset,) * 3))
    flat = img.reshape(len(img), -1)
    return opencv().addWeighted(flat, factor, flat, 0, offset).reshape(img.shape)


def extremes(img: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest value of each channel."""
    # One axis after the other: numpy is a hundred times slower with both at once.
    return img.min(axis=0).min(axis=0), img.max(axis=0).max(axis=0)


def diagonal(factors: Values, offsets: Values) -> np.ndarray:
    """The 3 x 4 matrix that scales each channel and adds to it."""
    (a, b, c), (x, y, z) = factors, offsets
    return np.array([(a, 0, 0, x), (0, b, 0, y), (0, 0, c, z)], np.float64)


def mix_colours(img: np.ndarray, matrix: np.ndarray, clip: bool) -> np.ndarray:
    """Multiplies each pixel's three colours by a 3 x 3 matrix; a fourth column is added."""
    checked_colours(img, "this colour augmentor")
    if img.dtype == np.uint8:
        return opencv().transform(img, matrix)
    return to_dtype(opencv().transform(working_float(img), matrix), img.dtype, clip)


def map_values(
    img: np.ndarray, func: Callable[[np.ndarray], np.ndarray], clip: bool = True
) -> np.ndarray:
    """Applies a function of single values, which is computed only 256 times for uint8 images.

    It receives a float array: 256 x 1 values, or the image itself. Its result may have a last axis
    of channels.
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
