"""Images bent smoothly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from towerpack.dataflow.imgaug.base import ImageAugmentor
from towerpack.dataflow.imgaug.moves import GeometricTransform, as_coords, expect_size
from towerpack.dataflow.imgaug.opencv import (
    BORDER_REPLICATE,
    INTER_LINEAR,
    INTER_NEAREST,
    on_pixels,
    opencv,
    shape2d,
    size_of,
)
from towerpack.dataflow.imgaug.transform import Transform

STEPS = 30  # to find where a point went: each makes the error smaller by the steepness of the bend


class GaussianDeform(ImageAugmentor):
    """Moves each anchor by a random offset, and everything around it by less and less.

    `anchors` are (y, x) from 0 to 1; `shape` is the (height, width) of the images; `sigma` is how
    far an anchor reaches, on the same scale of 0 to 1; offsets are up to `randrange` pixels either
    way, by default an eighth of the height. Memory and time grow with the number of anchors.
    """

    def __init__(
        self,
        anchors: Sequence[tuple[float, float]],
        shape: int | Sequence[int],
        sigma: float = 0.5,
        randrange: float | None = None,
    ):
        self.anchors = [(float(y), float(x)) for y, x in anchors]
        self.shape, self.sigma = shape2d(shape), sigma
        self.randrange = self.shape[0] / 8 if randrange is None else randrange
        if not self.anchors or sigma <= 0 or self.randrange < 0:
            raise ValueError(
                "expected at least one anchor, sigma > 0 and randrange >= 0, received "
                f"{len(self.anchors)} anchors, sigma={sigma}, randrange={randrange}"
            )
        height, width = self.shape
        y, x = np.mgrid[:height, :width]
        self._middles = np.stack([x, y], axis=-1).reshape(-1, 2) + 0.5
        self._weights = self.weights_at(self._middles).astype(np.float32)

    def weights_at(self, points: np.ndarray) -> np.ndarray:
        """How much of each anchor's offset reaches each point, N x anchors; they add up to 1."""
        height, width = self.shape
        anchors = np.array(self.anchors)[:, ::-1]
        away = points[:, None, :] / (width, height) - anchors
        exponent = -(away**2).sum(axis=2) / (2 * self.sigma**2)
        weights = np.exp(exponent - exponent.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        offsets = rng.uniform(-self.randrange, self.randrange, (len(self.anchors), 2))
        transform = DeformTransform(self, offsets)
        expect_size(img, self.shape, transform)
        return transform


class DeformTransform(GeometricTransform):
    """Each pixel of the result comes from its place and the offset there."""

    def __init__(self, deform: GaussianDeform, offsets: np.ndarray):
        self.deform, self.offsets = deform, offsets
        self.output_size = deform.shape

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        return self._remap(img, INTER_LINEAR)

    def apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return self._remap(mask, INTER_NEAREST, exact=True)

    def _remap(self, img: np.ndarray, interp: int, exact: bool = False) -> np.ndarray:
        expect_size(img, self.deform.shape, self)
        moved = self.deform._weights @ self.offsets.astype(np.float32)
        moved += (self.deform._middles - 0.5).astype(np.float32)
        places = moved.reshape(*size_of(img), 2)
        remap = opencv().remap
        return on_pixels(
            lambda part: remap(part, places, None, interp, borderMode=BORDER_REPLICATE), img, exact
        )

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        coords = as_coords(coords)
        # The offset says where a pixel came from; where a point goes to is its inverse.
        moved = coords.astype(np.float64)
        for _ in range(STEPS):
            moved = coords - self.deform.weights_at(moved) @ self.offsets
        return moved.astype(coords.dtype, copy=False)
