"""Ranges of values, colour spaces and dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from towerpack.dataflow.imgaug.base import PhotometricAugmentor, expect
from towerpack.dataflow.imgaug.pixels import (
    as_uint8,
    channels,
    checked_colours,
    diagonal,
    extremes,
    opencv,
)
from towerpack.dataflow.imgaug.transform import PhotometricTransform, Transform


class Normalize(PhotometricAugmentor):
    """(img - mean) / std as float32.

    Both are a number or one per channel, on the image's scale of 0 to 255.

    >>> Normalize(mean=100, std=50).augment(np.full((1, 1), 200, np.uint8)).tolist()
    [[2.0]]
    """

    def __init__(
        self, mean: float | Sequence[float] | np.ndarray, std: float | Sequence[float] | np.ndarray
    ):
        self.mean, self.std = mean, std
        mean32, std32 = (np.atleast_1d(np.asarray(x, np.float32)) for x in (mean, std))
        usable = (std32 > 0).all() and mean32.ndim == std32.ndim == 1
        expect(usable, "a mean and a positive std, numbers or one per channel", (mean, std))
        self.scaling = ChannelScaling(1 / std32, -mean32 / std32)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(self.scaling)


class ChannelScaling:
    """img * factor + offset as float32, each of one value or one per channel.

    The matrix for OpenCV, which is several times as fast as numpy for three channels, is made once:
    that takes longer than scaling a small image.
    """

    def __init__(self, factor: np.ndarray, offset: np.ndarray):
        self.factor, self.offset = (np.atleast_1d(x).astype(np.float32) for x in (factor, offset))
        self._count = max(len(self.factor), len(self.offset))
        if self._count in (1, 3):
            matrix = diagonal(np.broadcast_to(self.factor, 3), np.broadcast_to(self.offset, 3))
            self._matrix = matrix.astype(np.float32)

    def __call__(self, img: np.ndarray) -> np.ndarray:
        if self._count not in (1, channels(img)):
            expected = f"expected an image of {self._count} channels"
            raise ValueError(f"{expected}, received shape {img.shape}")
        img = img.astype(np.float32, copy=False)
        if channels(img) == 3:
            return opencv().transform(img, self._matrix)
        return img * self.factor + self.offset

    def __repr__(self) -> str:
        return f"ChannelScaling({self.factor.tolist()}, {self.offset.tolist()})"


@dataclass(eq=False, repr=False)
class MeanVarianceNormalize(PhotometricAugmentor):
    """Scales to mean 0 and variance 1, of the whole image or of each channel, as float32.

    The deviation is at least 1 / sqrt(number of values), so that a flat image becomes 0.
    """

    all_channel: bool = True

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(standardize, self.all_channel)


def standardize(img: np.ndarray, all_channel: bool) -> np.ndarray:
    axes = None if all_channel else (0, 1)
    mean = img.mean(axis=axes, dtype=np.float64)
    deviation = img.std(axis=axes, dtype=np.float64)
    count = img.size if all_channel else img.shape[0] * img.shape[1]
    factor = 1 / np.maximum(deviation, 1 / np.sqrt(count))
    return ChannelScaling(factor, -mean * factor)(img)


@dataclass(eq=False, repr=False)
class MinMaxNormalize(PhotometricAugmentor):
    """Stretches the whole image, or each channel, to [min, max] as float32.

    A flat image becomes `min`.
    """

    min: float = 0
    max: float = 255
    all_channel: bool = True

    def __post_init__(self) -> None:
        expect(self.min < self.max, "min < max", (self.min, self.max))

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(stretch_to, self.min, self.max, self.all_channel)


def stretch_to(img: np.ndarray, low: float, high: float, all_channel: bool) -> np.ndarray:
    img = img.astype(np.float32, copy=False)
    least, most = extremes(img)
    if all_channel:
        least, most = least.min(), most.max()
    span = np.where(most > least, most - least, 1)
    factor = (np.float32(high - low) / span).astype(np.float32)
    stretched = (img - least) * factor + np.float32(low)
    return np.clip(stretched, np.float32(low), np.float32(high))  # rounding may exceed them


@dataclass(eq=False, repr=False)
class ColorSpace(PhotometricAugmentor):
    """Converts by one of OpenCV's codes: `ColorSpace(cv2.COLOR_RGB2HSV)`.

    With `keepdims`, a result with one channel keeps the axis of channels.
    """

    mode: int
    keepdims: bool = True

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(convert_colours, self.mode, self.keepdims)


def convert_colours(img: np.ndarray, mode: int, keepdims: bool) -> np.ndarray:
    source = img if img.dtype == np.uint8 else as_float32(img)
    result = opencv().cvtColor(source, mode).astype(img.dtype, copy=False)
    return result[:, :, None] if keepdims and result.ndim == 2 else result


@dataclass(eq=False, repr=False)
class Grayscale(PhotometricAugmentor):
    """Converts colours to grey; with `rgb` the image is RGB, otherwise BGR.

    With `keepdims` the result is HW1, otherwise HW; with `keepshape` it has three equal channels.
    """

    keepdims: bool = True
    rgb: bool = False
    keepshape: bool = False

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        checked_colours(img, "Grayscale")
        return PhotometricTransform(to_grey, self.keepdims, self.rgb, self.keepshape)


def to_grey(img: np.ndarray, keepdims: bool, rgb: bool, keepshape: bool) -> np.ndarray:
    cv2 = opencv()
    grey = convert_colours(img, cv2.COLOR_RGB2GRAY if rgb else cv2.COLOR_BGR2GRAY, keepdims)
    return convert_colours(grey, cv2.COLOR_GRAY2RGB, keepdims) if keepshape else grey


@dataclass(eq=False, repr=False)
class ToUint8(PhotometricAugmentor):
    """Clips to [0, 255] and rounds to uint8."""

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(as_uint8)


@dataclass(eq=False, repr=False)
class ToFloat32(PhotometricAugmentor):
    """Converts to float32, with the same values."""

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(as_float32)


def as_float32(img: np.ndarray) -> np.ndarray:
    return img.astype(np.float32, copy=False)
