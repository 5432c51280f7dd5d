"""Noise and blur. What a transform has drawn is a seed, so it fits images of any size."""

from __future__ import annotations

import functools
import statistics
from dataclasses import dataclass

import numpy as np

from towerpack.dataflow.imgaug.base import PhotometricAugmentor
from towerpack.dataflow.imgaug.colour import checked_range
from towerpack.dataflow.imgaug.opencv import BORDER_REPLICATE, keep_axes, opencv
from towerpack.dataflow.imgaug.pixels import WHITE, through_uint8, to_dtype, working_float
from towerpack.dataflow.imgaug.transform import NO_OP, PhotometricTransform, Transform

LEVELS = 1 << 16  # of noise: so many quantiles of the normal distribution, out to 4.3 sigma


@dataclass(eq=False, repr=False)
class GaussianNoise(PhotometricAugmentor):
    """Adds independent normal noise to every value; `sigma` on the scale of 0 to 255."""

    sigma: float = 1
    clip: bool = True

    def __post_init__(self) -> None:
        if self.sigma < 0:
            raise ValueError(f"expected sigma >= 0, received {self.sigma}")

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(add_noise, _draw_seed(rng), self.sigma, self.clip)


def add_noise(img: np.ndarray, seed: int, sigma: float, clip: bool) -> np.ndarray:
    # Two random bytes choose a quantile: several times quicker than drawing normal numbers.
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
        if min(self.white_prob, self.black_prob) < 0 or self.white_prob + self.black_prob > 1:
            raise ValueError(
                "expected probabilities that add up to at most 1, received "
                f"white_prob={self.white_prob}, black_prob={self.black_prob}"
            )

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
    """What JPEG makes of the image at a quality drawn from `quality_range`, both included."""

    quality_range: tuple[int, int] = (40, 100)

    def __post_init__(self) -> None:
        low, high = self.quality_range
        if not 0 < low <= high <= 100:
            raise ValueError(f"expected qualities from 1 to 100, received {self.quality_range}")

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        low, high = self.quality_range
        return PhotometricTransform(compress, int(rng.integers(low, high + 1)))


def compress(img: np.ndarray, quality: int) -> np.ndarray:
    return through_uint8(img, lambda x: _compress(x, quality))


def _compress(img: np.ndarray, quality: int) -> np.ndarray:
    cv2 = opencv()
    if img.ndim == 3 and img.shape[2] not in (1, 3):
        raise ValueError(f"expected an image of 1 or 3 channels for JPEG, received {img.shape}")
    done, encoded = cv2.imencode(".jpg", img, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise RuntimeError(f"OpenCV could not encode an image of shape {img.shape} as JPEG")
    return keep_axes(cv2.imdecode(encoded, cv2.IMREAD_UNCHANGED), img)


@dataclass(eq=False, repr=False)
class GaussianBlur(PhotometricAugmentor):
    """Blurs with a kernel of 2n + 1 pixels, n from `size_range` (the end is not included).

    `sigma_range` (0, 0) means a deviation that fits the kernel. With `symmetric`, width and height
    of the kernel are equal.
    """

    size_range: tuple[int, int] = (0, 3)
    sigma_range: tuple[float, float] = (0, 0)
    symmetric: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.size_range[0] < self.size_range[1]:
            raise ValueError(f"expected size_range as 0 <= low < high, received {self.size_range}")
        checked_range(self.sigma_range, "sigma_range", least=0)

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
    source = img if img.dtype == np.uint8 else working_float(img)
    result = opencv().GaussianBlur(
        source, (width, height), sigmaX=sigma, sigmaY=sigma, borderType=BORDER_REPLICATE
    )
    return keep_axes(result, img).astype(img.dtype, copy=False)


def _draw_seed(rng: np.random.Generator) -> int:
    return int(rng.integers(1 << 63))


def _generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(seed))
