"""The tone curves of automatic augmentation: equalize, stretch, posterize, solarize, sharpen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from towerpack.dataflow.imgaug.base import PhotometricAugmentor
from towerpack.dataflow.imgaug.colour import checked_range
from towerpack.dataflow.imgaug.opencv import keep_axes, opencv
from towerpack.dataflow.imgaug.pixels import (
    WHITE,
    as_uint8,
    map_values,
    through_uint8,
    to_dtype,
    working_float,
)
from towerpack.dataflow.imgaug.simple import checked_probability
from towerpack.dataflow.imgaug.transform import NO_OP, PhotometricTransform, Transform


@dataclass(eq=False, repr=False)
class AutoContrast(PhotometricAugmentor):
    """Stretches each channel to [0, 255], with probability `prob`."""

    prob: float = 1.0

    def __post_init__(self) -> None:
        checked_probability(self.prob)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        if rng.random() < self.prob:
            return PhotometricTransform(stretch)
        return NO_OP


def stretch(img: np.ndarray) -> np.ndarray:
    # One axis after the other: numpy is a hundred times slower at both at once.
    low = img.min(axis=0).min(axis=0).astype(np.float32)
    span = img.max(axis=0).max(axis=0) - low
    factor = np.where(span > 0, WHITE / np.where(span > 0, span, 1), 1).astype(np.float32)
    low = np.where(span > 0, low, 0).astype(np.float32)
    return map_values(img, lambda x: (x - low) * factor)


@dataclass(eq=False, repr=False)
class Equalize(PhotometricAugmentor):
    """Equalizes the histogram of each channel, with probability `prob`.

    Float images are rounded to whole numbers for it.
    """

    prob: float = 1.0

    def __post_init__(self) -> None:
        checked_probability(self.prob)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        if rng.random() < self.prob:
            return PhotometricTransform(equalize)
        return NO_OP


def equalize(img: np.ndarray) -> np.ndarray:
    return through_uint8(img, _equalize)


def _equalize(img: np.ndarray) -> np.ndarray:
    cv2 = opencv()
    if img.ndim == 2 or img.shape[2] == 1:
        return keep_axes(cv2.equalizeHist(img), img)
    return cv2.merge([cv2.equalizeHist(part) for part in cv2.split(img)])


@dataclass(eq=False, repr=False)
class Posterize(PhotometricAugmentor):
    """Keeps the highest bits of each value: as many as drawn from `bits`, both included."""

    bits: tuple[int, int] = (4, 8)

    def __post_init__(self) -> None:
        if not 0 <= self.bits[0] <= self.bits[1] <= 8:
            raise ValueError(f"expected bits as (low, high) from 0 to 8, received {self.bits}")

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(keep_bits, int(rng.integers(self.bits[0], self.bits[1] + 1)))


def keep_bits(img: np.ndarray, bits: int) -> np.ndarray:
    mask = np.uint8(0xFF & ~((1 << (8 - bits)) - 1))
    return np.bitwise_and(as_uint8(img), mask).astype(img.dtype, copy=False)


@dataclass(eq=False, repr=False)
class Solarize(PhotometricAugmentor):
    """Inverts all values at or above a threshold drawn from `threshold`."""

    threshold: tuple[float, float] = (0, 256)

    def __post_init__(self) -> None:
        checked_range(self.threshold, "threshold", least=0)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(solarize, rng.uniform(*self.threshold))


def solarize(img: np.ndarray, threshold: float) -> np.ndarray:
    return map_values(img, lambda x: np.where(x >= threshold, WHITE - x, x), clip=False)


@dataclass(eq=False, repr=False)
class Sharpness(PhotometricAugmentor):
    """Sharpens by a factor from `range`: 1 changes nothing, 0 is smooth, 2 is sharp."""

    range: tuple[float, float] = (0.1, 1.9)

    def __post_init__(self) -> None:
        checked_range(self.range, "range", least=0)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(sharpen, rng.uniform(*self.range))


def sharpen(img: np.ndarray, factor: float) -> np.ndarray:
    # The blur is the mean of nine pixels and four times the middle one: OpenCV's box filter and a
    # weighted sum are twice as quick as a filter of nine weights.
    source = img if img.dtype == np.uint8 else working_float(img)
    flat = opencv().boxFilter(source, -1, (3, 3)).reshape(len(img), -1)
    box = (1 - factor) * 9 / 13
    sharp = opencv().addWeighted(source.reshape(len(img), -1), 1 - box, flat, box, 0)
    return to_dtype(sharp.reshape(img.shape), img.dtype, clip=True)
