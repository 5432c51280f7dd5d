"""Brightness, contrast, saturation, hue.

uint8 images are rounded and clipped in any case; `clip` says whether float images are clipped to
[0, 255] as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from towerpack.dataflow.imgaug.base import PhotometricAugmentor
from towerpack.dataflow.imgaug.opencv import channels, checked_colours, opencv
from towerpack.dataflow.imgaug.pixels import (
    RAMP,
    WHITE,
    diagonal,
    look_up,
    map_values,
    mix_colours,
    scale_and_add,
    to_dtype,
    working_float,
)
from towerpack.dataflow.imgaug.transform import PhotometricTransform, Transform

LUMA = (0.299, 0.587, 0.114)  # of red, green and blue in a grey: ITU-R BT.601
HUES = 180  # OpenCV counts a full turn of hue in a uint8 picture as 180


@dataclass(eq=False, repr=False)
class Brightness(PhotometricAugmentor):
    """Adds one number from [-delta, delta] to all pixels."""

    delta: float
    clip: bool = True

    def __post_init__(self) -> None:
        if self.delta < 0:
            raise ValueError(f"expected delta >= 0, received {self.delta}")

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        offset = rng.uniform(-self.delta, self.delta)
        return PhotometricTransform(scale_and_add, 1.0, offset, self.clip)


@dataclass(eq=False, repr=False)
class BrightnessScale(PhotometricAugmentor):
    """Multiplies all pixels by one number from `range`."""

    range: tuple[float, float]
    clip: bool = True

    def __post_init__(self) -> None:
        checked_range(self.range, "range", least=0)

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
        checked_range(self.factor_range, "factor_range", least=0)

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


def working_depth(img: np.ndarray) -> np.ndarray:
    return img if img.dtype == np.uint8 else working_float(img)


@dataclass(eq=False, repr=False)
class Saturation(PhotometricAugmentor):
    """Mixes the image with itself in grey; the factor of the image is 1 ± `alpha`."""

    alpha: float = 0.4
    rgb: bool = True
    clip: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"expected alpha from 0 to 1, received {self.alpha}")

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        checked_colours(img, "Saturation")
        matrix = saturation_matrix(1 + rng.uniform(-self.alpha, self.alpha), self.rgb)
        return PhotometricTransform(mix_colours, matrix, self.clip)


def saturation_matrix(factor: float, rgb: bool) -> np.ndarray:
    r, g, b = ((1 - factor) * weight for weight in (LUMA if rgb else LUMA[::-1]))
    return np.array([(factor + r, g, b), (r, factor + g, b), (r, g, factor + b)])


class Lighting(PhotometricAugmentor):
    """Adds a random mixture of the principal components of colours, AlexNet's "fancy PCA".

    `eigval` and `eigvec` (3 and 3 x 3, a component in each column) are of the data set's colours,
    in the order of the image's channels.
    """

    def __init__(
        self,
        std: float,
        eigval: Sequence[float] | np.ndarray,
        eigvec: Sequence[Sequence[float]] | np.ndarray,
        clip: bool = True,
    ):
        self.std, self.clip = std, clip
        self.eigval, self.eigvec = np.asarray(eigval, float), np.asarray(eigvec, float)
        if self.eigval.shape != (3,) or self.eigvec.shape != (3, 3) or std < 0:
            raise ValueError(
                "expected std >= 0, 3 eigenvalues and 3 x 3 eigenvectors, received "
                f"std={std}, shapes {self.eigval.shape} and {self.eigvec.shape}"
            )

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        checked_colours(img, "Lighting")
        offset = self.eigvec @ (self.eigval * rng.normal(0, self.std, 3))
        matrix = diagonal((1, 1, 1), offset.tolist())
        return PhotometricTransform(mix_colours, matrix, self.clip)


@dataclass(eq=False, repr=False)
class Hue(PhotometricAugmentor):
    """Turns all hues by one number from `range`, where 180 is the full circle."""

    range: tuple[float, float] = (0, HUES)
    rgb: bool = True

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        checked_colours(img, "Hue")
        return PhotometricTransform(turn_hue, rng.uniform(*self.range), self.rgb)


def turn_hue(img: np.ndarray, hue: float, rgb: bool) -> np.ndarray:
    cv2 = opencv()
    there = cv2.COLOR_RGB2HSV if rgb else cv2.COLOR_BGR2HSV
    back = cv2.COLOR_HSV2RGB if rgb else cv2.COLOR_HSV2BGR
    if img.dtype == np.uint8:
        hsv = cv2.cvtColor(img, there)
        table = (np.floor(RAMP + np.float32(hue)) % HUES).astype(np.uint8)
        cv2.insertChannel(look_up(cv2.extractChannel(hsv, 0), table), hsv, 0)
        return cv2.cvtColor(hsv, back)
    # Of float pictures OpenCV wants [0, 1], and gives hue in degrees.
    hsv = cv2.cvtColor(img.astype(np.float32) / np.float32(WHITE), there)
    hsv[:, :, 0] = (hsv[:, :, 0] + hue * (360 / HUES)) % 360
    return to_dtype(cv2.cvtColor(hsv, back) * np.float32(WHITE), img.dtype, clip=False)


@dataclass(eq=False, repr=False)
class Gamma(PhotometricAugmentor):
    """Gamma correction: 255 * (img / 255) ** (1 / (1 + g)), with g from `range`."""

    range: tuple[float, float] = (-0.5, 0.5)

    def __post_init__(self) -> None:
        checked_range(self.range, "range", least=-1)
        if self.range[0] <= -1:
            raise ValueError(f"expected a range above -1, received {self.range}")

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
        if self.min > self.max:
            raise ValueError(f"expected min <= max, received {self.min} and {self.max}")

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(clip_values, self.min, self.max)


def clip_values(img: np.ndarray, low: float, high: float) -> np.ndarray:
    if img.dtype.kind in "iu":
        limits = np.iinfo(img.dtype)
        low, high = max(round(low), limits.min), min(round(high), limits.max)
    return np.clip(img, img.dtype.type(low), img.dtype.type(high))


def checked_range(bounds: tuple[float, float], name: str, least: float) -> None:
    if len(bounds) != 2 or not least <= bounds[0] <= bounds[1]:
        raise ValueError(f"expected {name} as (low, high) from {least} up, received {bounds}")
