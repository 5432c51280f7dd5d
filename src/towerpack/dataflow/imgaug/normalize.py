"""Values put on a common scale. All of these give float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from towerpack.dataflow.imgaug.base import PhotometricAugmentor
from towerpack.dataflow.imgaug.opencv import channels, opencv
from towerpack.dataflow.imgaug.pixels import RAMP, look_up
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
        self._factor = np.float32(1) / std32
        self._offset = -mean32 * self._factor

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(scale_channels, self._factor, self._offset)


def scale_channels(img: np.ndarray, factor: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Img * factor + offset as float32, each of one value or one per channel."""
    count = channels(img)
    for values in (factor, offset):
        if len(values) not in (1, count):
            raise ValueError(
                f"expected an image of {len(values)} channels, received shape {img.shape}"
            )
    if len(factor) == len(offset) == 1:
        if img.dtype == np.uint8:
            return look_up(img, RAMP * factor + offset)
        return img.astype(np.float32, copy=False) * factor + offset
    if count != 3:
        return img.astype(np.float32, copy=False) * factor + offset
    matrix = np.zeros((3, 4), np.float32)
    matrix[[0, 1, 2], [0, 1, 2]] = factor
    matrix[:, 3] = offset
    return opencv().transform(img.astype(np.float32, copy=False), matrix)


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
    factor, offset = (np.atleast_1d(x).astype(np.float32) for x in (factor, -mean * factor))
    return scale_channels(img, factor, offset)


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
    axes = None if all_channel else (0, 1)
    img = img.astype(np.float32, copy=False)
    least, most = np.atleast_1d(img.min(axis=axes)), np.atleast_1d(img.max(axis=axes))
    span = np.where(most > least, most - least, 1)
    factor = (np.float32(high - low) / span).astype(np.float32)
    stretched = (img - least) * factor + np.float32(low)
    return np.clip(stretched, np.float32(low), np.float32(high))  # rounding may go beyond by a bit
