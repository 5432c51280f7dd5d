"""Shifted, turned, sheared and scaled images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from towerpack.dataflow.imgaug.base import ImageAugmentor
from towerpack.dataflow.imgaug.moves import WarpAffineTransform
from towerpack.dataflow.imgaug.opencv import BORDER_REPLICATE, INTER_LINEAR, Colour, size_of
from towerpack.dataflow.imgaug.transform import Transform


@dataclass(eq=False, repr=False)
class Shift(ImageAugmentor):
    """Moves the image by whole pixels, up to a fraction of its width and height either way."""

    horiz_frac: float = 0
    vert_frac: float = 0
    border: int = BORDER_REPLICATE
    border_value: Colour = 0

    def __post_init__(self) -> None:
        for fraction in (self.horiz_frac, self.vert_frac):
            if not 0 <= fraction < 1:
                raise ValueError(f"expected fractions from 0 to 1, received {fraction}")

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        height, width = size_of(img)
        x, y = self.horiz_frac * width, self.vert_frac * height
        mat = np.array([[1, 0, round(rng.uniform(-x, x))], [0, 1, round(rng.uniform(-y, y))]])
        return WarpAffineTransform(
            mat, (width, height), INTER_LINEAR, self.border, self.border_value
        )


@dataclass(eq=False, repr=False)
class Rotation(ImageAugmentor):
    """Turns the image by up to `max_deg` degrees either way.

    The point it turns about is drawn from `center_range`, in fractions of the width and height.
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
    """Turns the image about its middle, then takes the largest part without any border.

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
        # Between the middles of pixels, not their edges: beyond those, borders are mixed in.
        inner = largest_rectangle(width - 1, height - 1, math.radians(degrees))
        new_width, new_height = (math.floor(side + 1e-6) + 1 for side in inner)
        mat = around((width / 2, height / 2), rotation(degrees))
        mat[:, 2] += ((new_width - width) / 2, (new_height - height) / 2)
        return WarpAffineTransform(mat, (new_width, new_height), self.interp)


def largest_rectangle(width: float, height: float, angle: float) -> tuple[float, float]:
    """Sides of the largest upright rectangle in one of width x height that was turned.

    >>> [round(side, 3) for side in largest_rectangle(4, 2, math.pi / 2)]
    [2.0, 4.0]
    """
    sin, cos = abs(math.sin(angle)), abs(math.cos(angle))
    long, short = max(width, height), min(width, height)
    if short <= 2 * sin * cos * long or abs(sin - cos) < 1e-10:
        # Two of its corners touch one long side, the other two lie inside.
        half = short / 2
        return (half / sin, half / cos) if width >= height else (half / cos, half / sin)
    cos2 = cos * cos - sin * sin
    return (width * cos - height * sin) / cos2, (height * cos - width * sin) / cos2


@dataclass(eq=False, repr=False)
class Affine(ImageAugmentor):
    """Scales, turns, shears (degrees) and moves the image about its middle.

    `scale` is (low, high), or four numbers for x and y apart; `translate_frac` is the largest
    fraction of (width, height) to move by, either way.
    """

    scale: tuple[float, ...] | None = None
    translate_frac: tuple[float, float] | None = None
    rotate_max_deg: float = 0.0
    shear: float = 0.0
    interp: int = INTER_LINEAR
    border: int = BORDER_REPLICATE
    border_value: Colour = 0

    def __post_init__(self) -> None:
        if self.scale is not None and (len(self.scale) not in (2, 4) or min(self.scale) <= 0):
            raise ValueError(
                "expected scale as (low, high) or (low x, high x, low y, high y), all positive, "
                f"received {self.scale}"
            )
        if self.translate_frac is not None and not all(0 <= f <= 1 for f in self.translate_frac):
            raise ValueError(
                f"expected translate_frac as two fractions, received {self.translate_frac}"
            )
        if not 0 <= self.shear < 90:
            raise ValueError(f"expected 0 <= shear < 90 degrees, received {self.shear}")

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
    """Anticlockwise, as one sees the picture: y points down."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return np.array([[cos, sin], [-sin, cos]])


def around(center: tuple[float, float], linear: np.ndarray) -> np.ndarray:
    """A 2 x 3 matrix that leaves `center` where it is.

    `center` is in the continuous coordinates of `Transform`, the matrix maps middles of pixels.
    """
    middle = np.array([center[0] - 0.5, center[1] - 0.5])
    return np.concatenate([linear, (middle - linear @ middle)[:, None]], axis=1)


def _check_step(max_deg: float, step_deg: float | None) -> None:
    if step_deg is not None and not 0 < step_deg <= max_deg:
        raise ValueError(
            f"expected 0 < step_deg <= max_deg, received step_deg={step_deg}, max_deg={max_deg}"
        )


def _draw_degrees(max_deg: float, step_deg: float | None, rng: np.random.Generator) -> float:
    if step_deg is None:
        return rng.uniform(-max_deg, max_deg)
    steps = int(max_deg // step_deg)
    return float(rng.integers(-steps, steps + 1)) * step_deg
