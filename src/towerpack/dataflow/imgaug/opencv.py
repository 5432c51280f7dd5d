"""OpenCV, loaded at the first picture: what images may be, and calls that keep their shape.

OpenCV drops a last axis of one channel, knows few dtypes, and some of its functions take at most
four channels. Everything here gives back the dtype and the number of axes that it was given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from towerpack.core.optional import require

# OpenCV's own numbers, so that its constants are accepted and no argument's default imports it.
INTER_NEAREST = 0
INTER_LINEAR = 1
INTER_CUBIC = 2
INTER_AREA = 3
INTER_LANCZOS4 = 4
INTER_NEAREST_EXACT = 6  # takes the pixel in the middle, where INTER_NEAREST takes the upper left
BORDER_CONSTANT = 0
BORDER_REPLICATE = 1
BORDER_REFLECT = 2
BORDER_WRAP = 3
BORDER_REFLECT_101 = 4

MOST_CHANNELS = 4  # of one call that fills with a constant: it is a cv::Scalar

WARPABLE = "BHhfd"  # the dtypes, as numpy's letters: uint8, uint16, int16, float32, float64

Colour = float | Sequence[float]


@functools.cache
def opencv() -> Any:
    """The module cv2."""
    return require("cv2", extra="image")


def checked_image(img: Any) -> np.ndarray:
    """The image, or an error that says what one is."""
    if isinstance(img, np.ndarray) and img.ndim in (2, 3):
        if img.dtype.kind in "uif" and img.size:
            return img
        raise TypeError(
            "expected an image of uint8, or of floats in [0, 255], that is not empty; received "
            f"{img.dtype} of shape {img.shape}. Convert it in a MapData before"
        )
    found = f"shape {img.shape}" if isinstance(img, np.ndarray) else type(img).__name__
    raise TypeError(f"expected an image as an array of height, width[, channels]; received {found}")


def channels(img: np.ndarray) -> int:
    return 1 if img.ndim == 2 else img.shape[2]


def checked_colours(img: np.ndarray, asked_by: str) -> None:
    if img.ndim != 3 or img.shape[2] != 3:
        raise ValueError(
            f"{asked_by} expected an image with 3 colour channels, received shape {img.shape}; "
            "convert it with ColorSpace, or leave the augmentor out"
        )


def scalar(value: Colour) -> tuple[float, ...]:
    """A colour for OpenCV: a plain number would be the first channel's alone."""
    if isinstance(value, int | float | np.number):
        return (float(value),) * MOST_CHANNELS
    colour = tuple(float(x) for x in value)
    return colour + (0.0,) * (MOST_CHANNELS - len(colour))


def keep_axes(result: np.ndarray, img: np.ndarray) -> np.ndarray:
    """Gives a result the axis of one channel back that OpenCV has dropped."""
    return result[:, :, None] if result.ndim < img.ndim else result


def on_pixels(
    function: Callable[[np.ndarray], np.ndarray], img: np.ndarray, exact: bool = False
) -> np.ndarray:
    """A function of OpenCV that moves pixels, on any dtype and number of channels.

    With `exact` the values are labels: integers of 64 bits travel as float64, not as float32.
    """
    dtype = img.dtype
    known = dtype.char in WARPABLE
    if known and (img.ndim == 2 or img.shape[2] <= MOST_CHANNELS):  # nearly always: be quick
        return keep_axes(function(img), img)
    if not known:
        if dtype == np.bool_:
            img = img.view(np.uint8)
        else:
            wide = exact and dtype.kind in "iu"
            img = img.astype(np.float64 if wide else np.float32)
    if channels(img) > MOST_CHANNELS:
        parts = [img[:, :, i : i + MOST_CHANNELS] for i in range(0, img.shape[2], MOST_CHANNELS)]
        result = np.concatenate([keep_axes(function(part), part) for part in parts], axis=2)
    else:
        result = keep_axes(function(img), img)
    return result if result.dtype == dtype else result.astype(dtype)


def size_of(img: np.ndarray) -> tuple[int, int]:
    return img.shape[0], img.shape[1]


def shape2d(shape: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) from one number or two."""
    pair = (shape, shape) if isinstance(shape, int | np.integer) else tuple(shape)
    if len(pair) != 2 or not all(isinstance(x, int | np.integer) and x > 0 for x in pair):
        raise ValueError(f"expected a size or (height, width) in pixels, received {shape!r}")
    return int(pair[0]), int(pair[1])
