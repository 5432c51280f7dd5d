"""Values put on a common scale. All of these give float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from towerpack.dataflow.imgaug.base import PhotometricAugmentor
from towerpack.dataflow.imgaug.opencv import channels, opencv
from towerpack.dataflow.imgaug.pixels import diagonal
from towerpack.dataflow.imgaug.transform import PhotometricTransform, Transform


class Normalize(PhotometricAugmentor):
    """(img - mean) / std, each a number or one per channel, on the image's own scale of 0 to 255.

    >>> Normalize(mean=100, std=50).augment(np.full((1, 1), 200, np.uint8)).tolist()
    [[2.0]]
    """

    def __init__(
        self,
        mean: float | Sequence[float] | np.ndarray,
        std: float | Sequence[float] | np.ndarray,
    ):
        self.mean, self.std = mean, std
        mean32, std32 = (np.atleast_1d(np.asarray(x, np.float32)) for x in (mean, std))
        if not (std32 > 0).all() or mean32.ndim != 1 or std32.ndim != 1:
            raise ValueError(
                "expected a mean and a positive std, each a number or one per channel; received "
                f"mean={mean!r}, std={std!r}"
            )
        self.scaling = ChannelScaling(1 / std32, -mean32 / std32)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(self.scaling)


class ChannelScaling:
    """img * factor + offset as float32, each of one value or one per channel.

    The matrix for OpenCV, several times as quick as numpy at three channels, is made once.
    """

    def __init__(self, factor: np.ndarray, offset: np.ndarray):
        self.factor, self.offset = (np.atleast_1d(x).astype(np.float32) for x in (factor, offset))
        self._count = max(len(self.factor), len(self.offset))
        if self._count in (1, 3):
            each = (np.broadcast_to(x, 3).tolist() for x in (self.factor, self.offset))
            self._matrix = diagonal(*each).astype(np.float32)

    def __call__(self, img: np.ndarray) -> np.ndarray:
        if self._count not in (1, channels(img)):
            raise ValueError(
                f"expected an image of {self._count} channels, received shape {img.shape}"
            )
        img = img.astype(np.float32, copy=False)
        if channels(img) == 3:
            return opencv().transform(img, self._matrix)
        return img * self.factor + self.offset

    def __repr__(self) -> str:
        return f"ChannelScaling({self.factor.tolist()}, {self.offset.tolist()})"


@dataclass(eq=False, repr=False)
class MeanVarianceNormalize(PhotometricAugmentor):
    """To mean 0 and variance 1: of the image as a whole, or of each channel.

    The deviation is taken as at least 1 / sqrt(number of values), so that a flat image is 0.
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
    """Stretches to [min, max]: the image as a whole, or each channel. A flat one becomes `min`."""

    min: float = 0
    max: float = 255
    all_channel: bool = True

    def __post_init__(self) -> None:
        if self.min >= self.max:
            raise ValueError(f"expected min < max, received {self.min} and {self.max}")

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(stretch_to, self.min, self.max, self.all_channel)


def stretch_to(img: np.ndarray, low: float, high: float, all_channel: bool) -> np.ndarray:
    img = img.astype(np.float32, copy=False)
    if all_channel:
        least, most = np.atleast_1d(img.min()), np.atleast_1d(img.max())
    else:  # one axis after the other: numpy is a hundred times slower at both at once
        least = np.atleast_1d(img.min(axis=0).min(axis=0))
        most = np.atleast_1d(img.max(axis=0).max(axis=0))
    span = np.where(most > least, most - least, 1)
    factor = (np.float32(high - low) / span).astype(np.float32)
    stretched = (img - least) * factor + np.float32(low)
    return np.clip(stretched, np.float32(low), np.float32(high))  # rounding may go beyond by a bit
