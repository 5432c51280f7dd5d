"""Augmentors that flip, transpose, shift, rotate, shear, scale and bend images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from towerpack.dataflow.imgaug.base import ImageAugmentor, expect
from towerpack.dataflow.imgaug.geometric import (
    FlipTransform,
    TransposeTransform,
    WarpAffineTransform,
)
from towerpack.dataflow.imgaug.pixels import (
    BORDER_REPLICATE,
    INTER_LINEAR,
    INTER_NEAREST,
    Colour,
    on_pixels,
    opencv,
    shape2d,
    size_of,
)
from towerpack.dataflow.imgaug.transform import NO_OP, Transform, as_coords, expect_size

STEPS = 30  # of the fixed-point iteration that finds where a point goes


@dataclass(eq=False, repr=False)
class Flip(ImageAugmentor):
    """Exchanges left and right (`horiz`) or top and bottom (`vert`) with probability `prob`.

    Exactly one of the two must be set. For both, use two Flips.
    """

    draws_from_shape: ClassVar[bool] = True

    horiz: bool = False
    vert: bool = False
    prob: float = 0.5

    def __post_init__(self) -> None:
        one = bool(self.horiz) != bool(self.vert)
        expect(one, "horiz=True or vert=True (for both, two Flips)", (self.horiz, self.vert))
        expect(0 <= self.prob <= 1, "a probability from 0 to 1", self.prob)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return FlipTransform(*size_of(img), horiz=self.horiz) if rng.random() < self.prob else NO_OP


@dataclass(eq=False, repr=False)
class Transpose(ImageAugmentor):
    """Exchanges rows and columns with probability `prob`."""

    draws_from_shape: ClassVar[bool] = True

    prob: float = 0.5

    def __post_init__(self) -> None:
        expect(0 <= self.prob <= 1, "a probability from 0 to 1", self.prob)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return TransposeTransform(*size_of(img)) if rng.random() < self.prob else NO_OP


@dataclass(eq=False, repr=False)
class Shift(ImageAugmentor):
    """Shifts the image by whole pixels, up to a fraction of its size in either direction."""

    horiz_frac: float = 0
    vert_frac: float = 0
    border: int = BORDER_REPLICATE
    border_value: Colour = 0

    def __post_init__(self) -> None:
        for fraction in (self.horiz_frac, self.vert_frac):
            expect(0 <= fraction < 1, "fractions from 0 to 1", fraction)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        height, width = size_of(img)
        x, y = self.horiz_frac * width, self.vert_frac * height
        mat = np.array([[1, 0, round(rng.uniform(-x, x))], [0, 1, round(rng.uniform(-y, y))]])
        return WarpAffineTransform(
            mat, (width, height), INTER_LINEAR, self.border, self.border_value
        )


@dataclass(eq=False, repr=False)
class Rotation(ImageAugmentor):
    """Rotates the image by up to `max_deg` degrees in either direction.

    The centre of the rotation is drawn from `center_range`, in fractions of the width and height.
    With `step_deg`, only multiples of it are drawn.
    """

    max_deg: float
    center_range: tuple[float, float] = (0, 1)
    interp: int = INTER_LINEAR
    border: int = BORDER_REPLICATE
    step_deg: float | None = None
    border_value: Colour = 0

    def __post_init__(self) -> None:
        _check_step(self.max_deg, self.step_deg)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        height, width = size_of(img)
        low, high = self.center_range
        center = (width * rng.uniform(low, high), height * rng.uniform(low, high))
        degrees = _draw_degrees(self.max_deg, self.step_deg, rng)
        mat = around(center, rotation(degrees))
        return WarpAffineTransform(
            mat, (width, height), self.interp, self.border, self.border_value
        )


@dataclass(eq=False, repr=False)
class RotationAndCropValid(ImageAugmentor):
    """Rotates the image about its centre and takes the largest part without a border.

    The size of the result depends on the angle.
    """

    max_deg: float
    interp: int = INTER_LINEAR
    step_deg: float | None = None

    def __post_init__(self) -> None:
        _check_step(self.max_deg, self.step_deg)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        height, width = size_of(img)
        degrees = _draw_degrees(self.max_deg, self.step_deg, rng)
        # Between the centres of the outer pixels: beyond them, the border is mixed in.
        inner = largest_rectangle(width - 1, height - 1, math.radians(degrees))
        new_width, new_height = (math.floor(side + 1e-6) + 1 for side in inner)
        mat = around((width / 2, height / 2), rotation(degrees))
        mat[:, 2] += ((new_width - width) / 2, (new_height - height) / 2)
        return WarpAffineTransform(mat, (new_width, new_height), self.interp)


def largest_rectangle(width: float, height: float, angle: float) -> tuple[float, float]:
    """The sides of the largest upright rectangle in a rotated one of width x height.

    >>> [round(side, 3) for side in largest_rectangle(4, 2, math.pi / 2)]
    [2.0, 4.0]
    """
    sin, cos = abs(math.sin(angle)), abs(math.cos(angle))
    long, short = max(width, height), min(width, height)
    if short <= 2 * sin * cos * long or abs(sin - cos) < 1e-10:
        # Two of its corners touch a long side, and the other two lie inside.
        half = short / 2
        return (half / sin, half / cos) if width >= height else (half / cos, half / sin)
    cos2 = cos * cos - sin * sin
    return (width * cos - height * sin) / cos2, (height * cos - width * sin) / cos2


@dataclass(eq=False, repr=False)
class Affine(ImageAugmentor):
    """Scales, rotates, shears (in degrees) and shifts the image about its centre.

    `scale` is (low, high), or (low x, high x, low y, high y). `translate_frac` is the largest shift
    in either direction, as fractions of (width, height).
    """

    scale: tuple[float, ...] | None = None
    translate_frac: tuple[float, float] | None = None
    rotate_max_deg: float = 0.0
    shear: float = 0.0
    interp: int = INTER_LINEAR
    border: int = BORDER_REPLICATE
    border_value: Colour = 0

    def __post_init__(self) -> None:
        scale, shift = self.scale or (1, 1), self.translate_frac or (0, 0)
        forms = "scale as (low, high) or (low x, high x, low y, high y), all positive"
        expect(len(scale) in (2, 4) and min(scale) > 0, forms, scale)
        expect(0 <= min(shift) <= max(shift) <= 1, "translate_frac as two fractions", shift)
        expect(0 <= self.shear < 90, "0 <= shear < 90 degrees", self.shear)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        height, width = size_of(img)
        scale_x = scale_y = 1.0
        if self.scale is not None:
            scale_x = scale_y = rng.uniform(self.scale[0], self.scale[1])
            if len(self.scale) == 4:
                scale_y = rng.uniform(self.scale[2], self.scale[3])
        linear = rotation(rng.uniform(-self.rotate_max_deg, self.rotate_max_deg))
        shear = math.tan(math.radians(rng.uniform(-self.shear, self.shear)))
        linear = linear @ np.array([[scale_x, shear * scale_y], [0, scale_y]])
        mat = around((width / 2, height / 2), linear)
        if self.translate_frac is not None:
            x, y = self.translate_frac[0] * width, self.translate_frac[1] * height
            mat[:, 2] += (rng.uniform(-x, x), rng.uniform(-y, y))
        return WarpAffineTransform(
            mat, (width, height), self.interp, self.border, self.border_value
        )


def rotation(degrees: float) -> np.ndarray:
    """The matrix of a rotation, anticlockwise as seen in the image, where y points down."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return np.array([[cos, sin], [-sin, cos]])


def around(center: tuple[float, float], linear: np.ndarray) -> np.ndarray:
    """The 2 x 3 matrix of a linear map that keeps `center` in place.

    `center` is in the continuous coordinates of `Transform`; the matrix maps centres of pixels.
    """
    middle = np.array([center[0] - 0.5, center[1] - 0.5])
    return np.concatenate([linear, (middle - linear @ middle)[:, None]], axis=1)


def _check_step(max_deg: float, step_deg: float | None) -> None:
    if step_deg is not None:
        expect(0 < step_deg <= max_deg, "0 < step_deg <= max_deg", (step_deg, max_deg))


def _draw_degrees(max_deg: float, step_deg: float | None, rng: np.random.Generator) -> float:
    if step_deg is None:
        return rng.uniform(-max_deg, max_deg)
    steps = int(max_deg // step_deg)
    return float(rng.integers(-steps, steps + 1)) * step_deg


class GaussianDeform(ImageAugmentor):
    """Moves each anchor by a random offset, and its surroundings by less with distance.

    `anchors` are (y, x) from 0 to 1, and `shape` is the (height, width) of the images. `sigma` is
    the reach of an anchor, on the same scale. Offsets are up to `randrange` pixels in either
    direction, by default an eighth of the height. Memory and time grow with the number of anchors.
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
        expect(self.anchors, "at least one anchor", self.anchors)
        expect(sigma > 0, "sigma > 0", sigma)
        expect(self.randrange >= 0, "randrange >= 0", self.randrange)
        height, width = self.shape
        y, x = np.mgrid[:height, :width]
        self._middles = np.stack([x, y], axis=-1).reshape(-1, 2) + 0.5
        self._weights = self.weights_at(self._middles).astype(np.float32)

    def weights_at(self, points: np.ndarray) -> np.ndarray:
        """The weights of the anchors at each point, N x anchors; each row adds up to 1."""
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


class DeformTransform(Transform):
    """Each pixel of the result comes from its position plus the offset there."""

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
        # The offset leads to where a pixel comes from; a point moves by the inverse map.
        moved = coords.astype(np.float64)
        for _ in range(STEPS):
            moved = coords - self.deform.weights_at(moved) @ self.offsets
        return moved.astype(coords.dtype, copy=False)
