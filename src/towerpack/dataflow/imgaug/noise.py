"""Noise, blur and occlusion.

A transform of noise holds a seed, so it fits images of any size.
"""

from __future__ import annotations

import functools
import math
import statistics
from dataclasses import dataclass

import numpy as np

from towerpack.dataflow.imgaug.base import PhotometricAugmentor, expect, expect_range
from towerpack.dataflow.imgaug.crop_resize import AREA_TRIES, draw_inclusive, random_place
from towerpack.dataflow.imgaug.pixels import (
    BORDER_REPLICATE,
    WHITE,
    Colour,
    as_uint8,
    channels,
    keep_axes,
    opencv,
    size_of,
    to_dtype,
    working_depth,
)
from towerpack.dataflow.imgaug.transform import NO_OP, PhotometricTransform, Transform

LEVELS = 1 << 16  # the number of quantiles of the normal distribution, out to 4.3 sigma


@dataclass(eq=False, repr=False)
class GaussianNoise(PhotometricAugmentor):
    """Adds independent normal noise to every value; `sigma` on the scale of 0 to 255."""

    sigma: float = 1
    clip: bool = True

    def __post_init__(self) -> None:
        expect(self.sigma >= 0, "sigma >= 0", self.sigma)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(add_noise, _draw_seed(rng), self.sigma, self.clip)


def add_noise(img: np.ndarray, seed: int, sigma: float, clip: bool) -> np.ndarray:
    # Two random bytes choose a quantile: several times faster than drawing normal numbers.
    drawn = np.frombuffer(_generator(seed).bytes(img.size * 2), np.uint16)
    noise = np.take(_normal_quantiles() * np.float32(sigma), drawn).reshape(img.shape)
    noise += img
    return to_dtype(noise, img.dtype, clip)


@functools.cache
def _normal_quantiles() -> np.ndarray:
    normal = statistics.NormalDist()
    return np.array([normal.inv_cdf((i + 0.5) / LEVELS) for i in range(LEVELS)], np.float32)


@dataclass(eq=False, repr=False)
class SaltPepperNoise(PhotometricAugmentor):
    """Makes pixels white or black, each with its probability."""

    white_prob: float = 0.05
    black_prob: float = 0.05

    def __post_init__(self) -> None:
        probs = self.white_prob, self.black_prob
        fit = min(probs) >= 0 and sum(probs) <= 1
        expect(fit, "probabilities of white and black that add up to at most 1", probs)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(
            add_salt_and_pepper, _draw_seed(rng), self.white_prob, self.black_prob
        )


def add_salt_and_pepper(img: np.ndarray, seed: int, white: float, black: float) -> np.ndarray:
    height, width = img.shape[:2]
    drawn = np.frombuffer(_generator(seed).bytes(height * width * 2), np.uint16)
    drawn = drawn.reshape(height, width)
    img = img.copy()
    img[drawn < round(black * LEVELS)] = 0
    img[drawn >= LEVELS - round(white * LEVELS)] = WHITE
    return img


@dataclass(eq=False, repr=False)
class JpegNoise(PhotometricAugmentor):
    """Compresses the image as JPEG, with a quality drawn from `quality_range`, both included."""

    quality_range: tuple[int, int] = (40, 100)

    def __post_init__(self) -> None:
        low, high = self.quality_range
        expect(0 < low <= high <= 100, "qualities from 1 to 100", self.quality_range)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        low, high = self.quality_range
        return PhotometricTransform(compress, int(rng.integers(low, high + 1)))


def compress(img: np.ndarray, quality: int) -> np.ndarray:
    cv2 = opencv()
    if channels(img) not in (1, 3):
        raise ValueError(f"expected an image of 1 or 3 channels for JPEG, received {img.shape}")
    done, encoded = cv2.imencode(".jpg", as_uint8(img), [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise RuntimeError(f"OpenCV could not encode an image of shape {img.shape} as JPEG")
    result = keep_axes(cv2.imdecode(encoded, cv2.IMREAD_UNCHANGED), img)
    return result.astype(img.dtype, copy=False)


@dataclass(eq=False, repr=False)
class GaussianBlur(PhotometricAugmentor):
    """Blurs with a kernel of 2n + 1 pixels, with n from `size_range` (the end is not included).

    A `sigma_range` of (0, 0) means a deviation that fits the kernel. With `symmetric`, the kernel
    is square.
    """

    size_range: tuple[int, int] = (0, 3)
    sigma_range: tuple[float, float] = (0, 0)
    symmetric: bool = True

    def __post_init__(self) -> None:
        low, high = self.size_range
        expect(0 <= low < high, "size_range as 0 <= low < high", self.size_range)
        expect_range(self.sigma_range, "sigma_range")

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        low, high = self.size_range
        width, height = (int(low + u * (high - low)) * 2 + 1 for u in rng.random(2).tolist())
        sigma = rng.uniform(*self.sigma_range)
        if self.symmetric:
            height = width
        if (width, height) == (1, 1):
            return NO_OP
        return PhotometricTransform(blur, width, height, sigma)


def blur(img: np.ndarray, width: int, height: int, sigma: float) -> np.ndarray:
    options = {"sigmaX": sigma, "sigmaY": sigma, "borderType": BORDER_REPLICATE}
    result = opencv().GaussianBlur(working_depth(img), (width, height), **options)
    return keep_axes(result, img).astype(img.dtype, copy=False)


def _draw_seed(rng: np.random.Generator) -> int:
    return int(rng.integers(1 << 63))


def _generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(seed))


@dataclass(eq=False, repr=False)
class RandomCutout(PhotometricAugmentor):
    """Fills a rectangle somewhere in the image with a colour.

    Its height and width are numbers of pixels, or (low, high) to draw from, both included.

    >>> RandomCutout((2, 5), 3).augment(np.full((8, 8), 9, np.uint8)).shape
    (8, 8)
    """

    h_range: int | tuple[int, int]
    w_range: int | tuple[int, int]
    fill: Colour = 0

    def __post_init__(self) -> None:
        for low, high in map(_as_range, (self.h_range, self.w_range)):
            expect(0 < low <= high, "a size or (low, high)", (low, high))

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        height, width = size_of(img)
        h = draw_inclusive(*_as_range(self.h_range), height, rng)
        w = draw_inclusive(*_as_range(self.w_range), width, rng)
        place = random_place((height, width), (h, w), rng)
        return PhotometricTransform(fill_rectangle, place.y0, place.x0, h, w, self.fill)


@dataclass(eq=False, repr=False)
class RandomErasing(PhotometricAugmentor):
    """Fills a rectangle of random area and aspect ratio, with probability `prob`.

    `area` is a fraction of the image. `fill` is a colour, or "noise" for random pixels.
    """

    prob: float = 0.5
    area: tuple[float, float] = (0.02, 0.33)
    aspect_ratio: tuple[float, float] = (0.3, 3.3)
    fill: Colour | str = 0

    def __post_init__(self) -> None:
        expect(0 <= self.prob <= 1, "a probability from 0 to 1", self.prob)
        known = not isinstance(self.fill, str) or self.fill == "noise"
        expect(known, "a colour or 'noise' as fill", self.fill)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        if rng.random() >= self.prob:
            return NO_OP
        height, width = size_of(img)
        low, high = (math.log(bound) for bound in self.aspect_ratio)
        for _ in range(AREA_TRIES):
            area = rng.uniform(*self.area) * height * width
            aspect = math.exp(rng.uniform(low, high))
            h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < h <= height and 0 < w <= width:
                place = random_place((height, width), (h, w), rng)
                fill: Colour | np.ndarray | str = self.fill
                if fill == "noise":
                    fill = rng.integers(0, 256, (h, w, *img.shape[2:]), dtype=np.uint8)
                return PhotometricTransform(fill_rectangle, place.y0, place.x0, h, w, fill)
        return NO_OP


def fill_rectangle(
    img: np.ndarray, y0: int, x0: int, h: int, w: int, fill: Colour | np.ndarray
) -> np.ndarray:
    img = img.copy()
    img[y0 : y0 + h, x0 : x0 + w] = fill
    return img


def _as_range(bounds: int | tuple[int, int]) -> tuple[int, int]:
    return (bounds, bounds) if isinstance(bounds, int | np.integer) else (bounds[0], bounds[1])
