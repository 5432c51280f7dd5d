"""RandAugment: a few random operations, all of one strength."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from towerpack.dataflow.imgaug.base import ImageAugmentor, expect
from towerpack.dataflow.imgaug.colour import (
    change_contrast,
    equalize,
    keep_bits,
    saturation_matrix,
    sharpen,
    solarize,
    stretch,
)
from towerpack.dataflow.imgaug.geometric import WarpAffineTransform
from towerpack.dataflow.imgaug.pixels import (
    BORDER_CONSTANT,
    INTER_LINEAR,
    Colour,
    channels,
    mix_colours,
    scale_and_add,
    size_of,
)
from towerpack.dataflow.imgaug.transform import (
    NO_OP,
    PhotometricTransform,
    Transform,
    TransformList,
)
from towerpack.dataflow.imgaug.warp import around, rotation

# The effect of each operation at the full magnitude, as in the paper.
MOST = 30

MOST_SHEAR = 0.3

MOST_TRANSLATION = 0.45  # of the width or height

MOST_DEGREES = 30.0

MOST_BITS_LOST = 4

MOST_ENHANCEMENT = 0.9  # factors of 1 - 0.9 to 1 + 0.9

Warp = Callable[[float, int, int], np.ndarray]


@dataclass(eq=False, repr=False)
class RandAugment(ImageAugmentor):
    """Applies `num_ops` operations, each drawn from `operations`, at `magnitude` (0 to 30).

    After Cubuk et al. 2020. Directions and signs are random, the strength is not. Operations on
    colours do not change images without three channels (RGB, or BGR with `rgb=False`). Pixels from
    outside the image are `fill`.

    >>> augment = RandAugment(num_ops=2, magnitude=9)
    >>> augment.augment(np.zeros((32, 32, 3), np.uint8)).shape
    (32, 32, 3)
    """

    num_ops: int = 2
    magnitude: float = 9
    operations: Sequence[str] | None = None
    fill: Colour = 128
    interp: int = INTER_LINEAR
    rgb: bool = True

    def __post_init__(self) -> None:
        if self.operations is not None:
            self.operations = tuple(self.operations)
        self._names = tuple(OPERATIONS) if self.operations is None else self.operations
        unknown = sorted(set(self._names) - set(OPERATIONS))
        expect(self._names and not unknown, f"operations of {sorted(OPERATIONS)}", unknown)
        expect(self.num_ops >= 0, "num_ops >= 0", self.num_ops)
        expect(0 <= self.magnitude <= MOST, f"a magnitude from 0 to {MOST}", self.magnitude)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        drawn = []
        for _ in range(self.num_ops):
            name = self._names[int(rng.integers(len(self._names)))]
            sign = 1.0 if rng.random() < 0.5 else -1.0
            drawn.append(OPERATIONS[name](self, img, sign * self.magnitude / MOST))
        return TransformList(drawn)


Operation = Callable[[RandAugment, np.ndarray, float], Transform]


def _warp(matrix: Warp) -> Operation:
    def operation(augment: RandAugment, img: np.ndarray, strength: float) -> Transform:
        height, width = size_of(img)
        mat = matrix(strength, height, width)
        return WarpAffineTransform(
            mat, (width, height), augment.interp, BORDER_CONSTANT, augment.fill
        )

    return operation


def _about_centre(linear: Callable[[float], np.ndarray]) -> Operation:
    return _warp(lambda strength, h, w: around((w / 2, h / 2), linear(strength)))


def _color(augment: RandAugment, img: np.ndarray, strength: float) -> Transform:
    if channels(img) != 3:
        return NO_OP
    matrix = saturation_matrix(1 + MOST_ENHANCEMENT * strength, augment.rgb)
    return PhotometricTransform(mix_colours, matrix, True)


def _contrast(augment: RandAugment, img: np.ndarray, strength: float) -> Transform:
    rgb = augment.rgb if channels(img) == 3 else None
    return PhotometricTransform(change_contrast, 1 + MOST_ENHANCEMENT * strength, rgb, True)


# Each is called with the augmentor, the image and the strength, from -1 to 1.
OPERATIONS: dict[str, Operation] = {
    "Identity": lambda augment, img, s: NO_OP,
    "ShearX": _about_centre(lambda s: np.array([[1, MOST_SHEAR * s], [0, 1]])),
    "ShearY": _about_centre(lambda s: np.array([[1, 0], [MOST_SHEAR * s, 1]])),
    "TranslateX": _warp(lambda s, h, w: np.array([[1, 0, MOST_TRANSLATION * s * w], [0, 1, 0]])),
    "TranslateY": _warp(lambda s, h, w: np.array([[1, 0, 0], [0, 1, MOST_TRANSLATION * s * h]])),
    "Rotate": _about_centre(lambda s: rotation(MOST_DEGREES * s)),
    "Brightness": lambda augment, img, s: PhotometricTransform(
        scale_and_add, 1 + MOST_ENHANCEMENT * s, 0.0, True
    ),
    "Color": _color,
    "Contrast": _contrast,
    "Sharpness": lambda augment, img, s: PhotometricTransform(sharpen, 1 + MOST_ENHANCEMENT * s),
    "Posterize": lambda augment, img, s: PhotometricTransform(
        keep_bits, 8 - round(MOST_BITS_LOST * abs(s))
    ),
    "Solarize": lambda augment, img, s: PhotometricTransform(solarize, 256 * (1 - abs(s))),
    "AutoContrast": lambda augment, img, s: PhotometricTransform(stretch),
    "Equalize": lambda augment, img, s: PhotometricTransform(equalize),
}
