"""Parts of images, and images with parts cut out of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from towerpack.dataflow.imgaug.base import ImageAugmentor, PhotometricAugmentor
from towerpack.dataflow.imgaug.moves import CropTransform, PadTransform, ResizeTransform
from towerpack.dataflow.imgaug.opencv import (
    BORDER_CONSTANT,
    INTER_LINEAR,
    Colour,
    shape2d,
    size_of,
)
from towerpack.dataflow.imgaug.resize import shortest_edge
from towerpack.dataflow.imgaug.simple import checked_probability
from towerpack.dataflow.imgaug.transform import (
    NO_OP,
    PhotometricTransform,
    Transform,
    TransformList,
)

TRIES = 10  # for an area and aspect ratio that fit into the image, as in the GoogLeNet recipe


@dataclass(eq=False, repr=False)
class RandomCrop(ImageAugmentor):
    """A part of a fixed size, (height, width) or one number, anywhere in the image."""

    draws_from_shape: ClassVar[bool] = True

    crop_shape: int | Sequence[int]

    def __post_init__(self) -> None:
        self.crop_shape = shape2d(self.crop_shape)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        size: tuple[int, int] = self.crop_shape  # type: ignore[assignment] # since __post_init__
        return _random_place(checked_fit(img, size, self), size, rng)


@dataclass(eq=False, repr=False)
class CenterCrop(ImageAugmentor):
    """The middle of the image, of a fixed size: (height, width) or one number."""

    draws_from_shape: ClassVar[bool] = True

    crop_shape: int | Sequence[int]

    def __post_init__(self) -> None:
        self.crop_shape = shape2d(self.crop_shape)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        size = shape2d(self.crop_shape)
        return _central(checked_fit(img, size, self), size)


@dataclass(eq=False, repr=False)
class RandomCropRandomShape(ImageAugmentor):
    """A part of random width, wmin to wmax, and height, hmin to hmax, both ends included.

    A limit that is None, or larger than the image, is the image's size.
    """

    draws_from_shape: ClassVar[bool] = True

    wmin: int
    hmin: int
    wmax: int | None = None
    hmax: int | None = None

    def __post_init__(self) -> None:
        for low, high in ((self.wmin, self.wmax), (self.hmin, self.hmax)):
            if low < 1 or (high is not None and high < low):
                raise ValueError(f"expected 1 <= min <= max, received min={low}, max={high}")

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        height, width = size_of(img)
        size = (
            _inclusive(self.hmin, self.hmax, height, rng),
            _inclusive(self.wmin, self.wmax, width, rng),
        )
        return _random_place((height, width), size, rng)


def _inclusive(low: int, high: int | None, most: int, rng: np.random.Generator) -> int:
    high = most if high is None else min(high, most)
    return int(rng.integers(min(low, high), high + 1))


@dataclass(eq=False, repr=False)
class GoogleNetRandomCropAndResize(ImageAugmentor):
    """A random part of random area and aspect ratio, resized to `target_shape`.

    The recipe of GoogLeNet, and of nearly everyone since for training on ImageNet. If ten tries
    find no part that fits, the middle of the image is taken.
    """

    crop_area_fraction: tuple[float, float] = (0.08, 1.0)
    aspect_ratio_range: tuple[float, float] = (0.75, 1.333)
    target_shape: int | Sequence[int] = 224
    interp: int = INTER_LINEAR

    def __post_init__(self) -> None:
        self.target_shape = shape2d(self.target_shape)
        for name in ("crop_area_fraction", "aspect_ratio_range"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ValueError(f"expected {name} as (low, high), received {(low, high)}")

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        height, width = size_of(img)
        new_height, new_width = shape2d(self.target_shape)
        for _ in range(TRIES):
            area = rng.uniform(*self.crop_area_fraction) * height * width
            aspect = rng.uniform(*self.aspect_ratio_range)
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if rng.random() < 0.5:
                w, h = h, w
            if 0 < h <= height and 0 < w <= width:
                crop = _random_place((height, width), (h, w), rng)
                resize = ResizeTransform(h, w, new_height, new_width, self.interp)
                return TransformList([crop, resize])
        # A scale at which the target fits, then its middle: for a square, the shortest edge.
        scale = max(new_height / height, new_width / width)
        edge = max(math.ceil(scale * min(height, width) - 1e-9), 1)
        resize = shortest_edge((height, width), edge, self.interp)
        grown = (max(resize.new_h, new_height), max(resize.new_w, new_width))
        resize = ResizeTransform(height, width, *grown, self.interp)
        return TransformList([resize, _central(grown, (new_height, new_width))])


@dataclass(eq=False, repr=False)
class Pad(ImageAugmentor):
    """A border around the image: `size` pixels on each side, or (vertical, horizontal).

    With a `RandomCrop` after it, the augmentation of CIFAR.
    """

    size: int | tuple[int, int]
    border: int = BORDER_CONSTANT
    value: Colour = 0

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        y, x = (self.size, self.size) if isinstance(self.size, int) else self.size
        return PadTransform(size_of(img), y, y, x, x, self.border, self.value)


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
            if not 0 < low <= high:
                raise ValueError(f"expected a size or (low, high), received {(low, high)}")

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        height, width = size_of(img)
        h = _inclusive(*_as_range(self.h_range), height, rng)
        w = _inclusive(*_as_range(self.w_range), width, rng)
        place = _random_place((height, width), (h, w), rng)
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
        checked_probability(self.prob)
        if isinstance(self.fill, str) and self.fill != "noise":
            raise ValueError(f"expected a colour or 'noise' as fill, received {self.fill!r}")

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        if rng.random() >= self.prob:
            return NO_OP
        height, width = size_of(img)
        low, high = (math.log(bound) for bound in self.aspect_ratio)
        for _ in range(TRIES):
            area = rng.uniform(*self.area) * height * width
            aspect = math.exp(rng.uniform(low, high))
            h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < h <= height and 0 < w <= width:
                place = _random_place((height, width), (h, w), rng)
                where = (place.y0, place.x0, h, w)
                if isinstance(self.fill, str):
                    noise = rng.integers(0, 256, (h, w, *img.shape[2:]), dtype=np.uint8)
                    return PhotometricTransform(fill_rectangle, *where, noise)
                return PhotometricTransform(fill_rectangle, *where, self.fill)
        return NO_OP


def fill_rectangle(
    img: np.ndarray, y0: int, x0: int, h: int, w: int, fill: Colour | np.ndarray
) -> np.ndarray:
    img = img.copy()
    img[y0 : y0 + h, x0 : x0 + w] = fill
    return img


def _as_range(bounds: int | tuple[int, int]) -> tuple[int, int]:
    return (bounds, bounds) if isinstance(bounds, int | np.integer) else (bounds[0], bounds[1])


def checked_fit(
    img: np.ndarray, size: tuple[int, int], augmentor: ImageAugmentor
) -> tuple[int, int]:
    """The image's size, if a part of the given one is in it."""
    height, width = size_of(img)
    if size[0] > height or size[1] > width:
        raise ValueError(
            f"{augmentor!r} expected an image of at least {size[0]}x{size[1]} (height x width), "
            f"received {height}x{width}; put a ResizeShortestEdge or a Pad before it"
        )
    return height, width


def _random_place(
    outer: tuple[int, int], inner: tuple[int, int], rng: np.random.Generator
) -> CropTransform:
    # floor(u * n) of a double: uniform to far below one in a million for any size of an image, at
    # a tenth of the cost of rng.integers.
    u, v = rng.random(2).tolist()
    y0 = int(u * (outer[0] - inner[0] + 1))
    return CropTransform(y0, int(v * (outer[1] - inner[1] + 1)), *inner)


def _central(outer: tuple[int, int], inner: tuple[int, int]) -> CropTransform:
    return CropTransform((outer[0] - inner[0]) // 2, (outer[1] - inner[1]) // 2, *inner)
