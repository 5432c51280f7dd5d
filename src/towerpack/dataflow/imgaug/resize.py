"""Other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from towerpack.core import logger
from towerpack.dataflow.imgaug.base import ImageAugmentor
from towerpack.dataflow.imgaug.moves import ResizeTransform
from towerpack.dataflow.imgaug.opencv import INTER_LINEAR, shape2d, size_of
from towerpack.dataflow.imgaug.transform import NO_OP, Transform

TRIES = 50  # of RandomResize, until the aspect ratio is within its limit


@dataclass(eq=False, repr=False)
class Resize(ImageAugmentor):
    """To a fixed size: (height, width), or one number for both."""

    shape: int | Sequence[int]
    interp: int = INTER_LINEAR

    def __post_init__(self) -> None:
        self.shape = shape2d(self.shape)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return ResizeTransform(*size_of(img), *shape2d(self.shape), self.interp)


@dataclass(eq=False, repr=False)
class ResizeShortestEdge(ImageAugmentor):
    """Makes the shorter side `size` pixels long, and keeps the aspect ratio."""

    size: int
    interp: int = INTER_LINEAR

    def __post_init__(self) -> None:
        shape2d(self.size)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return shortest_edge(size_of(img), self.size, self.interp)


def shortest_edge(size: tuple[int, int], target: int, interp: int) -> ResizeTransform:
    height, width = size
    scale = target / min(height, width)
    if height < width:
        new = (target, max(round(scale * width), 1))
    else:
        new = (max(round(scale * height), 1), target)
    return ResizeTransform(height, width, *new, interp)


@dataclass(eq=False, repr=False)
class RandomResize(ImageAugmentor):
    """To a random width and height.

    `xrange` and `yrange` are (low, high): floats are factors of the image's size, ints are pixels,
    `high` included. Neither side gets smaller than `minimum` (width, height). The aspect ratio
    changes by no more than the factor 1 + `aspect_ratio_thres`; with 0 it is kept, and `yrange` is
    not needed. An image for which 50 tries find no such size stays as it is.
    """

    xrange: tuple[float, float]
    yrange: tuple[float, float] | None = None
    minimum: tuple[int, int] = (0, 0)
    aspect_ratio_thres: float = 0.15
    interp: int = INTER_LINEAR

    def __post_init__(self) -> None:
        if self.aspect_ratio_thres < 0:
            raise ValueError(
                f"expected aspect_ratio_thres >= 0, received {self.aspect_ratio_thres}"
            )
        if self.yrange is None and self.aspect_ratio_thres > 0:
            raise ValueError(
                "expected a yrange; only with aspect_ratio_thres=0 does it follow from xrange"
            )
        for low, high in filter(None, (self.xrange, self.yrange)):
            if not 0 < low <= high or _pixels(low) != _pixels(high):
                raise ValueError(
                    f"expected a range of two ints (pixels) or two floats (factors), low first; "
                    f"received {(low, high)}"
                )

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        height, width = size_of(img)
        for _ in range(TRIES):
            new_width = _draw_side(self.xrange, width, self.minimum[0], rng)
            if self.aspect_ratio_thres == 0 or self.yrange is None:
                new_height = max(round(new_width * height / width), self.minimum[1], 1)
            else:
                new_height = _draw_side(self.yrange, height, self.minimum[1], rng)
                change = (new_width / new_height) / (width / height)
                if max(change, 1 / change) > 1 + self.aspect_ratio_thres:
                    continue
            return ResizeTransform(height, width, new_height, new_width, self.interp)
        logger.warning(
            "RandomResize left an image of %dx%d as it is: in %d tries no size of xrange %s and "
            "yrange %s kept to aspect_ratio_thres %s",
            *(height, width, TRIES, self.xrange, self.yrange, self.aspect_ratio_thres),
        )
        return NO_OP


def _pixels(bound: float) -> bool:
    return isinstance(bound, int | np.integer)


def _draw_side(
    bounds: tuple[float, float], size: int, minimum: int, rng: np.random.Generator
) -> int:
    if _pixels(bounds[0]):
        side = int(rng.integers(int(bounds[0]), int(bounds[1]) + 1))
    else:
        side = round(rng.uniform(*bounds) * size)
    return max(side, minimum, 1)
