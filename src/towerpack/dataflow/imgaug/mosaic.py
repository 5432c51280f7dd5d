"""Mosaic: four images in one, with their boxes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from towerpack.dataflow.imgaug.moves import CropTransform, PasteTransform, ResizeTransform
from towerpack.dataflow.imgaug.opencv import (
    INTER_LINEAR,
    Colour,
    checked_image,
    shape2d,
    size_of,
)
from towerpack.dataflow.imgaug.paste import ConstantBackgroundFiller
from towerpack.dataflow.imgaug.transform import Transform, TransformList

TILES = 4


class Mosaic:
    """Four images around a random point of a picture of (height, width).

    Each is scaled by a number from `scale`, keeps its aspect ratio, and has one corner at the
    point; what sticks out is cut off, what remains is `fill`. `draw` gives a `MosaicTransform`. In
    a pipeline, `MosaicData` finds the other three images and treats boxes as well.

    >>> images = [np.full((20, 30, 3), i, np.uint8) for i in range(4)]
    >>> Mosaic(64).draw(images, np.random.default_rng(0)).apply_images(images).shape
    (64, 64, 3)
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        center_range: tuple[float, float] = (0.25, 0.75),
        scale: tuple[float, float] = (0.5, 1.0),
        fill: Colour = 114,
        interp: int = INTER_LINEAR,
    ):
        self.shape = shape2d(shape)
        if not 0 < center_range[0] <= center_range[1] < 1:
            raise ValueError(f"expected center_range inside of 0 to 1, received {center_range}")
        if not 0 < scale[0] <= scale[1]:
            raise ValueError(f"expected scale as positive (low, high), received {scale}")
        self.center_range, self.scale = center_range, scale
        self.fill, self.interp = fill, interp

    def draw(self, images: Sequence[np.ndarray], rng: np.random.Generator) -> MosaicTransform:
        if len(images) != TILES:
            raise ValueError(f"expected {TILES} images, received {len(images)}")
        height, width = self.shape
        y = min(max(round(rng.uniform(*self.center_range) * height), 1), height - 1)
        x = min(max(round(rng.uniform(*self.center_range) * width), 1), width - 1)
        tiles = []
        for i, img in enumerate(images):
            scale = rng.uniform(*self.scale)
            tiles.append(self._tile(size_of(checked_image(img)), scale, y, x, i))
        return MosaicTransform(self.shape, tiles, self.fill)

    def _tile(
        self, size: tuple[int, int], scale: float, y: int, x: int, number: int
    ) -> TransformList:
        """Resize, cut off, put down: of the upper left, upper right, lower left, lower right."""
        height, width = self.shape
        # At scale 1 the image just fits into the whole mosaic.
        scale *= min(height / size[0], width / size[1])
        h, w = max(round(size[0] * scale), 1), max(round(size[1] * scale), 1)
        above, left = number < 2, number % 2 == 0
        rows, columns = min(h, y if above else height - y), min(w, x if left else width - x)
        # The corner at the point is the one that stays.
        crop = CropTransform(h - rows if above else 0, w - columns if left else 0, rows, columns)
        place = (y - rows if above else y, x - columns if left else x)
        fill = ConstantBackgroundFiller(self.fill).fill
        return TransformList(
            [
                ResizeTransform(*size, h, w, self.interp),
                crop,
                PasteTransform(*place, self.shape, fill),
            ]
        )


class MosaicTransform:
    """Where each of the four images goes: a list of transforms, and the picture of them all."""

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
        """The boxes of all images in the mosaic, and for each image the numbers of those kept."""
        kept = [
            tile.filter_boxes(own, min_size, min_visible)
            for own, tile in zip(boxes, self.tiles, strict=True)
        ]
        return np.concatenate([moved for moved, _ in kept]), [numbers for _, numbers in kept]

    def transform_of(self, number: int) -> Transform:
        """Where one of the four goes: for its points and masks."""
        return self.tiles[number]
