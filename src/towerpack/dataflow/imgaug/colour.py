"""Brightness, contrast, saturation, hue, and tone curves.

uint8 images are always rounded and clipped. `clip` decides whether float images are clipped to
[0, 255] as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from towerpack.dataflow.imgaug.base import PhotometricAugmentor, expect, expect_range
from towerpack.dataflow.imgaug.pixels import (
    RAMP,
    WHITE,
    as_uint8,
    channels,
    checked_colours,
    diagonal,
    extremes,
    keep_axes,
    look_up,
    map_values,
    mix_colours,
    opencv,
    scale_and_add,
    to_dtype,
    working_depth,
    working_float,
)
from towerpack.dataflow.imgaug.transform import NO_OP, PhotometricTransform, Transform

LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in grey, from ITU-R BT.601

HUES = 180  # OpenCV counts a full turn of hue in a uint8 image as 180


@dataclass(eq=False, repr=False)
class Brightness(PhotometricAugmentor):
    """Adds one number from [-delta, delta] to all pixels."""

    delta: float
    clip: bool = True

    def __post_init__(self) -> None:
        expect(self.delta >= 0, "delta >= 0", self.delta)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        offset = rng.uniform(-self.delta, self.delta)
        return PhotometricTransform(scale_and_add, 1.0, offset, self.clip)


@dataclass(eq=False, repr=False)
class BrightnessScale(PhotometricAugmentor):
    """Multiplies all pixels by one number from `range`."""

    range: tuple[float, float]
    clip: bool = True

    def __post_init__(self) -> None:
        expect_range(self.range, "range")

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(scale_and_add, rng.uniform(*self.range), 0.0, self.clip)


@dataclass(eq=False, repr=False)
class Contrast(PhotometricAugmentor):
    """Multiplies the distance from the image's mean by a number from `factor_range`.

    With `rgb=None` each channel has its own mean; with True (RGB) or False (BGR) the mean is that
    of the image in grey.
    """

    factor_range: tuple[float, float]
    rgb: bool | None = None
    clip: bool = True

    def __post_init__(self) -> None:
        expect_range(self.factor_range, "factor_range")

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        factor = rng.uniform(*self.factor_range)
        return PhotometricTransform(change_contrast, factor, self.rgb, self.clip)


def change_contrast(img: np.ndarray, factor: float, rgb: bool | None, clip: bool) -> np.ndarray:
    count = channels(img)
    if count == 3:
        r, g, b, _ = opencv().mean(working_depth(img))
        if rgb is not None:
            weights = LUMA if rgb else LUMA[::-1]
            r = g = b = r * weights[0] + g * weights[1] + b * weights[2]
        offsets = [mean * (1 - factor) for mean in (r, g, b)]
        return mix_colours(img, diagonal((factor,) * 3, offsets), clip)
    if rgb is not None and count != 1:
        checked_colours(img, "Contrast(rgb=...)")
    means = img.mean(axis=(0, 1), dtype=np.float64)
    if count == 1:
        return scale_and_add(img, factor, float(means.item()) * (1 - factor), clip)
    return to_dtype(working_float(img) * factor + means * (1 - factor), img.dtype, clip)


@dataclass(eq=False, repr=False)
class Saturation(PhotometricAugmentor):
    """Mixes the image with itself in grey; the factor of the image is 1 ± `alpha`."""

    alpha: float = 0.4
    rgb: bool = True
    clip: bool = True

    def __post_init__(self) -> None:
        expect(0 <= self.alpha <= 1, "alpha from 0 to 1", self.alpha)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        checked_colours(img, "Saturation")
        matrix = saturation_matrix(1 + rng.uniform(-self.alpha, self.alpha), self.rgb)
        return PhotometricTransform(mix_colours, matrix, self.clip)


def saturation_matrix(factor: float, rgb: bool) -> np.ndarray:
    r, g, b = ((1 - factor) * weight for weight in (LUMA if rgb else LUMA[::-1]))
    return np.array([(factor + r, g, b), (r, factor + g, b), (r, g, factor + b)])


@dataclass(eq=False, repr=False)
class Lighting(PhotometricAugmentor):
    """Adds a random mixture of the principal components of colours, AlexNet's "fancy PCA".

    `eigval` and `eigvec` (3 and 3 x 3, with a component in each column) belong to the colours of
    the data set, in the order of the image's channels.
    """

    std: float
    eigval: Sequence[float] | np.ndarray
    eigvec: Sequence[Sequence[float]] | np.ndarray
    clip: bool = True

    def __post_init__(self) -> None:
        self.eigval, self.eigvec = np.asarray(self.eigval, float), np.asarray(self.eigvec, float)
        shapes = self.eigval.shape, self.eigvec.shape
        expect(shapes == ((3,), (3, 3)), "3 eigenvalues and 3 x 3 eigenvectors", shapes)
        expect(self.std >= 0, "std >= 0", self.std)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        checked_colours(img, "Lighting")
        offset = self.eigvec @ (self.eigval * rng.normal(0, self.std, 3))
        matrix = diagonal((1, 1, 1), offset.tolist())
        return PhotometricTransform(mix_colours, matrix, self.clip)


@dataclass(eq=False, repr=False)
class Hue(PhotometricAugmentor):
    """Rotates all hues by one number from `range`, where 180 is the full circle."""

    range: tuple[float, float] = (0, HUES)
    rgb: bool = True

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        checked_colours(img, "Hue")
        return PhotometricTransform(rotate_hue, rng.uniform(*self.range), self.rgb)


def rotate_hue(img: np.ndarray, hue: float, rgb: bool) -> np.ndarray:
    cv2 = opencv()
    there = cv2.COLOR_RGB2HSV if rgb else cv2.COLOR_BGR2HSV
    back = cv2.COLOR_HSV2RGB if rgb else cv2.COLOR_HSV2BGR
    if img.dtype == np.uint8:
        hsv = cv2.cvtColor(img, there)
        table = (np.floor(RAMP + np.float32(hue)) % HUES).astype(np.uint8)
        cv2.insertChannel(look_up(cv2.extractChannel(hsv, 0), table), hsv, 0)
        return cv2.cvtColor(hsv, back)
    # For float images OpenCV expects [0, 1] and returns the hue in degrees.
    hsv = cv2.cvtColor(img.astype(np.float32) / np.float32(WHITE), there)
    hsv[:, :, 0] = (hsv[:, :, 0] + hue * (360 / HUES)) % 360
    return to_dtype(cv2.cvtColor(hsv, back) * np.float32(WHITE), img.dtype, clip=False)


@dataclass(eq=False, repr=False)
class Gamma(PhotometricAugmentor):
    """Gamma correction: 255 * (img / 255) ** (1 / (1 + g)), with g from `range`."""

    range: tuple[float, float] = (-0.5, 0.5)

    def __post_init__(self) -> None:
        expect(-1 < self.range[0] <= self.range[1], "a range above -1", self.range)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(correct_gamma, 1 / (1 + rng.uniform(*self.range)))


def correct_gamma(img: np.ndarray, power: float) -> np.ndarray:
    return map_values(img, lambda x: (np.clip(x, 0, WHITE) / WHITE) ** power * WHITE)


@dataclass(eq=False, repr=False)
class Clip(PhotometricAugmentor):
    """Clips all pixels to [min, max]."""

    min: float = 0
    max: float = WHITE

    def __post_init__(self) -> None:
        expect(self.min <= self.max, "min <= max", (self.min, self.max))

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(clip_values, self.min, self.max)


def clip_values(img: np.ndarray, low: float, high: float) -> np.ndarray:
    if img.dtype.kind in "iu":
        limits = np.iinfo(img.dtype)
        low, high = max(round(low), limits.min), min(round(high), limits.max)
    return np.clip(img, img.dtype.type(low), img.dtype.type(high))


@dataclass(eq=False, repr=False)
class AutoContrast(PhotometricAugmentor):
    """Stretches each channel to [0, 255], with probability `prob`."""

    prob: float = 1.0

    def __post_init__(self) -> None:
        expect(0 <= self.prob <= 1, "a probability from 0 to 1", self.prob)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(stretch) if rng.random() < self.prob else NO_OP


def stretch(img: np.ndarray) -> np.ndarray:
    low, high = (x.astype(np.float32) for x in extremes(img))
    span = high - low
    factor = np.where(span > 0, WHITE / np.where(span > 0, span, 1), 1).astype(np.float32)
    low = np.where(span > 0, low, 0).astype(np.float32)
    return map_values(img, lambda x: (x - low) * factor)


@dataclass(eq=False, repr=False)
class Equalize(PhotometricAugmentor):
    """Equalizes the histogram of each channel, with probability `prob`.

    Float images are rounded to whole numbers.
    """

    prob: float = 1.0

    def __post_init__(self) -> None:
        expect(0 <= self.prob <= 1, "a probability from 0 to 1", self.prob)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(equalize) if rng.random() < self.prob else NO_OP


def equalize(img: np.ndarray) -> np.ndarray:
    cv2 = opencv()
    parts = [cv2.equalizeHist(part) for part in cv2.split(as_uint8(img))]
    return keep_axes(cv2.merge(parts), img).astype(img.dtype, copy=False)


@dataclass(eq=False, repr=False)
class Posterize(PhotometricAugmentor):
    """Keeps the highest bits of each value; their number is drawn from `bits`, both included."""

    bits: tuple[int, int] = (4, 8)

    def __post_init__(self) -> None:
        low, high = self.bits
        expect(0 <= low <= high <= 8, "bits as (low, high) from 0 to 8", self.bits)

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
        expect_range(self.threshold, "threshold")

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(solarize, rng.uniform(*self.threshold))


def solarize(img: np.ndarray, threshold: float) -> np.ndarray:
    return map_values(img, lambda x: np.where(x >= threshold, WHITE - x, x), clip=False)


@dataclass(eq=False, repr=False)
class Sharpness(PhotometricAugmentor):
    """Sharpens by a factor from `range`: 1 changes nothing, 0 is smooth, 2 is sharp."""

    range: tuple[float, float] = (0.1, 1.9)

    def __post_init__(self) -> None:
        expect_range(self.range, "range")

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(sharpen, rng.uniform(*self.range))


def sharpen(img: np.ndarray, factor: float) -> np.ndarray:
    # The blur counts the pixel five times and its eight neighbours once. OpenCV's box filter and a
    # weighted sum are twice as fast as a filter with nine weights.
    source = working_depth(img)
    flat = opencv().boxFilter(source, -1, (3, 3)).reshape(len(img), -1)
    box = (1 - factor) * 9 / 13
    sharp = opencv().addWeighted(source.reshape(len(img), -1), 1 - box, flat, box, 0)
    return to_dtype(sharp.reshape(img.shape), img.dtype, clip=True)
