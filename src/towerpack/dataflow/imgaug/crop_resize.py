"""Augmentors that crop, pad and resize images, or put them on a larger background."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from towerpack.core import logger
from towerpack.dataflow.imgaug.base import ImageAugmentor, expect, expect_positive_range
from towerpack.dataflow.imgaug.geometric import (
    CropTransform,
    PadTransform,
    PasteTransform,
    ResizeTransform,
)
from towerpack.dataflow.imgaug.pixels import (
    BORDER_CONSTANT,
    INTER_LINEAR,
    Colour,
    checked_image,
    shape2d,
    size_of,
)
from towerpack.dataflow.imgaug.transform import NO_OP, Transform, TransformList

AREA_TRIES = 10  # for an area and aspect ratio that fit into the image, as in the GoogLeNet recipe
TILES = 4  # images in a mosaic
SIZE_TRIES = 50  # for a size whose aspect ratio is within the limit of RandomResize


@dataclass(eq=False, repr=False)
class RandomCrop(ImageAugmentor):
    """Takes a part of a fixed size, (height, width) or one number, anywhere in the image."""

    draws_from_shape: ClassVar[bool] = True

    crop_shape: int | Sequence[int]

    def __post_init__(self) -> None:
        self.crop_shape = shape2d(self.crop_shape)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        size = shape2d(self.crop_shape)
        return random_place(checked_fit(img, size, self), size, rng)


class CenterCrop(RandomCrop):
    """Takes the middle of the image, of a fixed size: (height, width) or one number."""

    draws_from_shape: ClassVar[bool] = True

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        size = shape2d(self.crop_shape)
        return _central(checked_fit(img, size, self), size)


@dataclass(eq=False, repr=False)
class RandomCropRandomShape(ImageAugmentor):
    """Takes a part of random width, wmin to wmax, and height, hmin to hmax, both ends included.

    If a limit is None or exceeds the image, the image's size is the limit.
    """

    draws_from_shape: ClassVar[bool] = True

    wmin: int
    hmin: int
    wmax: int | None = None
    hmax: int | None = None

    def __post_init__(self) -> None:
        for low, high in ((self.wmin, self.wmax), (self.hmin, self.hmax)):
            ordered = low >= 1 and (high is None or low <= high)
            expect(ordered, "1 <= min <= max", (low, high))

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        height, width = size_of(img)
        size = (
            draw_inclusive(self.hmin, self.hmax, height, rng),
            draw_inclusive(self.wmin, self.wmax, width, rng),
        )
        return random_place((height, width), size, rng)


def draw_inclusive(low: int, high: int | None, most: int, rng: np.random.Generator) -> int:
    high = most if high is None else min(high, most)
    return int(rng.integers(min(low, high), high + 1))


@dataclass(eq=False, repr=False)
class GoogleNetRandomCropAndResize(ImageAugmentor):
    """Takes a random part of random area and aspect ratio, and resizes it to `target_shape`.

    This is GoogLeNet's recipe, which most later networks use for training on ImageNet. If ten tries
    find no part that fits, the middle of the image is taken.
    """

    crop_area_fraction: tuple[float, float] = (0.08, 1.0)
    aspect_ratio_range: tuple[float, float] = (0.75, 1.333)
    target_shape: int | Sequence[int] = 224
    interp: int = INTER_LINEAR

    def __post_init__(self) -> None:
        self.target_shape = shape2d(self.target_shape)
        for name in ("crop_area_fraction", "aspect_ratio_range"):
            expect_positive_range(getattr(self, name), name)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        height, width = size_of(img)
        new_height, new_width = shape2d(self.target_shape)
        for _ in range(AREA_TRIES):
            area = rng.uniform(*self.crop_area_fraction) * height * width
            aspect = rng.uniform(*self.aspect_ratio_range)
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if rng.random() < 0.5:
                w, h = h, w
            if 0 < h <= height and 0 < w <= width:
                crop = random_place((height, width), (h, w), rng)
                resize = ResizeTransform(h, w, new_height, new_width, self.interp)
                return TransformList([crop, resize])
        # Scale the image until the target fits, and take the middle.
        scale = max(new_height / height, new_width / width)
        edge = max(math.ceil(scale * min(height, width) - 1e-9), 1)
        resize = shortest_edge((height, width), edge, self.interp)
        grown = (max(resize.new_h, new_height), max(resize.new_w, new_width))
        resize = ResizeTransform(height, width, *grown, self.interp)
        return TransformList([resize, _central(grown, (new_height, new_width))])


@dataclass(eq=False, repr=False)
class Pad(ImageAugmentor):
    """Adds a border around the image: `size` pixels on each side, or (vertical, horizontal).

    With a `RandomCrop` after it, this is the usual augmentation for CIFAR.
    """

    size: int | tuple[int, int]
    border: int = BORDER_CONSTANT
    value: Colour = 0

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        y, x = (self.size, self.size) if isinstance(self.size, int) else self.size
        return PadTransform(size_of(img), y, y, x, x, self.border, self.value)


def checked_fit(
    img: np.ndarray, size: tuple[int, int], augmentor: ImageAugmentor
) -> tuple[int, int]:
    """The image's size; raises an error if a part of the given size does not fit."""
    height, width = size_of(img)
    if size[0] > height or size[1] > width:
        raise ValueError(
            f"{augmentor!r} expected an image of at least {size[0]}x{size[1]} (height x width), "
            f"received {height}x{width}; put a ResizeShortestEdge or a Pad before it"
        )
    return height, width


def random_place(
    outer: tuple[int, int], inner: tuple[int, int], rng: np.random.Generator
) -> CropTransform:
    # floor(u * n) costs a tenth of rng.integers. Its deviation from uniform is far below one in a
    # million for any size of an image.
    u, v = rng.random(2).tolist()
    y0 = int(u * (outer[0] - inner[0] + 1))
    return CropTransform(y0, int(v * (outer[1] - inner[1] + 1)), *inner)


def _central(outer: tuple[int, int], inner: tuple[int, int]) -> CropTransform:
    return CropTransform((outer[0] - inner[0]) // 2, (outer[1] - inner[1]) // 2, *inner)


@dataclass(eq=False, repr=False)
class Resize(ImageAugmentor):
    """Resizes to a fixed size: (height, width), or one number for both."""

    shape: int | Sequence[int]
    interp: int = INTER_LINEAR

    def __post_init__(self) -> None:
        self.shape = shape2d(self.shape)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return ResizeTransform(*size_of(img), *shape2d(self.shape), self.interp)


@dataclass(eq=False, repr=False)
class ResizeShortestEdge(ImageAugmentor):
    """Resizes so that the shorter side has `size` pixels, and keeps the aspect ratio."""

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
    """Resizes to a random width and height.

    `xrange` and `yrange` are (low, high): floats are factors of the image's size, ints are pixels
    with `high` included. Neither side becomes smaller than `minimum` (width, height). The aspect
    ratio changes by no more than the factor 1 + `aspect_ratio_thres`; with 0 it is kept, and
    `yrange` is not needed. If 50 tries find no such size, a warning is logged and the image does
    not change.
    """

    xrange: tuple[float, float]
    yrange: tuple[float, float] | None = None
    minimum: tuple[int, int] = (0, 0)
    aspect_ratio_thres: float = 0.15
    interp: int = INTER_LINEAR

    def __post_init__(self) -> None:
        threshold = self.aspect_ratio_thres
        expect(threshold >= 0, "aspect_ratio_thres >= 0", threshold)
        given = self.yrange is not None or threshold == 0
        expect(given, "a yrange, or aspect_ratio_thres=0", f"aspect_ratio_thres={threshold}")
        for low, high in filter(None, (self.xrange, self.yrange)):
            fits = 0 < low <= high and _pixels(low) == _pixels(high)
            expect(fits, "(low, high) of two ints (pixels) or two floats (factors)", (low, high))

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        height, width = size_of(img)
        for _ in range(SIZE_TRIES):
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
            "RandomResize did not change an image of %dx%d: in %d tries no size from xrange %s and "
            "yrange %s was within aspect_ratio_thres %s",
            *(height, width, SIZE_TRIES, self.xrange, self.yrange, self.aspect_ratio_thres),
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


class BackgroundFiller:
    """Base class: a subclass makes a background in its method `fill`."""

    def fill(self, background_shape: tuple[int, int], img: np.ndarray) -> np.ndarray:
        """A new array of this height and width, with the channels and dtype of `img`."""
        raise NotImplementedError(
            f"expected {type(self).__name__} to have a method fill(background_shape, img)"
        )


class ConstantBackgroundFiller(BackgroundFiller):
    """A background of one value or colour."""

    def __init__(self, value: Colour):
        self.value = value

    def fill(self, background_shape: tuple[int, int], img: np.ndarray) -> np.ndarray:
        background = np.empty((*background_shape, *img.shape[2:]), img.dtype)
        background[...] = self.value
        return background

    def __repr__(self) -> str:
        return f"ConstantBackgroundFiller({self.value!r})"


class CenterPaste(ImageAugmentor):
    """Puts the image in the middle of a background of (height, width)."""

    def __init__(
        self,
        background_shape: int | Sequence[int],
        background_filler: BackgroundFiller | None = None,
    ):
        self.background_shape = shape2d(background_shape)
        self.background_filler = background_filler or ConstantBackgroundFiller(0)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        (height, width), (rows, columns) = size_of(img), self.background_shape
        if height > rows or width > columns:
            raise ValueError(
                f"{self!r} expected an image of at most {rows}x{columns}, received "
                f"{height}x{width}; put a Resize before it"
            )
        y0, x0 = self._place(rows - height, columns - width, rng)
        return PasteTransform(y0, x0, self.background_shape, self.background_filler.fill)

    def _place(self, room_y: int, room_x: int, rng: np.random.Generator) -> tuple[int, int]:
        return room_y // 2, room_x // 2


class RandomPaste(CenterPaste):
    """Puts the image anywhere on a background of (height, width)."""

    def _place(self, room_y: int, room_x: int, rng: np.random.Generator) -> tuple[int, int]:
        return int(rng.integers(room_y + 1)), int(rng.integers(room_x + 1))


@dataclass(eq=False)
class Mosaic:
    """Combines four images around a random point of a larger one of (height, width).

    Each image is scaled by a number from `scale`, keeps its aspect ratio, and has one corner at the
    point. It is cut off at the edge, and the rest of the area is `fill`. `draw` returns a
    `MosaicTransform`. In a pipeline, `MosaicData` finds the other three images and moves boxes too.

    >>> images = [np.full((20, 30, 3), i, np.uint8) for i in range(4)]
    >>> Mosaic(64).draw(images, np.random.default_rng(0)).apply_images(images).shape
    (64, 64, 3)
    """

    shape: int | Sequence[int]
    center_range: tuple[float, float] = (0.25, 0.75)
    scale: tuple[float, float] = (0.5, 1.0)
    fill: Colour = 114
    interp: int = INTER_LINEAR

    def __post_init__(self) -> None:
        self._size = shape2d(self.shape)
        low, high = self.center_range
        expect(0 < low <= high < 1, "center_range within 0 to 1", self.center_range)
        expect_positive_range(self.scale, "scale")

    def draw(self, images: Sequence[np.ndarray], rng: np.random.Generator) -> MosaicTransform:
        expect(len(images) == TILES, f"{TILES} images", len(images))
        height, width = self._size
        y = min(max(round(rng.uniform(*self.center_range) * height), 1), height - 1)
        x = min(max(round(rng.uniform(*self.center_range) * width), 1), width - 1)
        tiles = []
        for i, img in enumerate(images):
            scale = rng.uniform(*self.scale)
            tiles.append(self._tile(size_of(checked_image(img)), scale, y, x, i))
        return MosaicTransform(self._size, tiles, self.fill)

    def _tile(
        self, size: tuple[int, int], scale: float, y: int, x: int, number: int
    ) -> TransformList:
        """Places image 0 (upper left), 1 (upper right), 2 (lower left) or 3 (lower right)."""
        height, width = self._size
        # At scale 1 the image just fits into the mosaic.
        scale *= min(height / size[0], width / size[1])
        h, w = max(round(size[0] * scale), 1), max(round(size[1] * scale), 1)
        above, left = number < 2, number % 2 == 0
        rows, columns = min(h, y if above else height - y), min(w, x if left else width - x)
        # The crop keeps the corner at the point.
        crop = CropTransform(h - rows if above else 0, w - columns if left else 0, rows, columns)
        place = (y - rows if above else y, x - columns if left else x)
        fill = ConstantBackgroundFiller(self.fill).fill
        resize, paste = (
            ResizeTransform(*size, h, w, self.interp),
            PasteTransform(*place, self._size, fill),
        )
        return TransformList([resize, crop, paste])


class MosaicTransform:
    """Where each of the four images goes: one list of transforms for each."""

    def __init__(self, shape: tuple[int, int], tiles: Sequence[TransformList], fill: Colour):
        self.shape, self.tiles, self.fill = shape, tiles, fill

    def apply_images(self, images: Sequence[np.ndarray]) -> np.ndarray:
        first = images[0]
        for img in images:
            if img.dtype != first.dtype or img.shape[2:] != first.shape[2:]:
                raise ValueError(
                    f"expected images of one dtype and number of channels, received {first.dtype} "
                    f"of {first.shape} and {img.dtype} of {img.shape}"
                )
        mosaic = ConstantBackgroundFiller(self.fill).fill(self.shape, first)
        for img, tile in zip(images, self.tiles, strict=True):
            *before, paste = tile.transforms
            paste.paste_onto(TransformList(before).apply_image(img), mosaic)  # type: ignore[attr-defined]
        return mosaic

    def filter_boxes(
        self, boxes: Sequence[np.ndarray], min_size: float = 1.0, min_visible: float = 0.0
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """The boxes of all images in the mosaic, and for each image the indices of those kept."""
        kept = [
            tile.filter_boxes(own, min_size, min_visible)
            for own, tile in zip(boxes, self.tiles, strict=True)
        ]
        return np.concatenate([moved for moved, _ in kept]), [numbers for _, numbers in kept]
