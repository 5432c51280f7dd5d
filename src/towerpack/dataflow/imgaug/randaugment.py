"""RandAugment: a few random operations, all of one strength."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from towerpack.dataflow.imgaug.base import ImageAugmentor
from towerpack.dataflow.imgaug.colour import change_contrast, saturation_matrix
from towerpack.dataflow.imgaug.moves import WarpAffineTransform
from towerpack.dataflow.imgaug.opencv import (
    BORDER_CONSTANT,
    INTER_LINEAR,
    Colour,
    channels,
    size_of,
)
from towerpack.dataflow.imgaug.pixels import mix_colours, scale_and_add
from towerpack.dataflow.imgaug.tone import equalize, keep_bits, sharpen, solarize, stretch
from towerpack.dataflow.imgaug.transform import (
    NO_OP,
    PhotometricTransform,
    Transform,
    TransformList,
)
from towerpack.dataflow.imgaug.warp import around, rotation

# What each operation does at the full magnitude, as in the paper.
MOST = 30
MOST_SHEAR = 0.3
MOST_TRANSLATION = 0.45  # of the width or height
MOST_DEGREES = 30.0
MOST_BITS_LOST = 4
MOST_ENHANCEMENT = 0.9  # factors of 1 - 0.9 to 1 + 0.9

Warp = Callable[[float, int, int], np.ndarray]


class RandAugment(ImageAugmentor):
    """Applies `num_ops` operations, each drawn from `operations`, at `magnitude` of 30.

    After Cubuk et al. 2020. Directions and signs are random, the strength is not. Operations on
    colours leave images without three channels (RGB, or BGR with `rgb=False`) as they are. What
    comes from outside the image is `fill`.

    >>> augment = RandAugment(num_ops=2, magnitude=9)
    >>> augment.augment(np.zeros((32, 32, 3), np.uint8)).shape
    (32, 32, 3)
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: float = 9,
        operations: Sequence[str] | None = None,
        fill: Colour = 128,
        interp: int = INTER_LINEAR,
        rgb: bool = True,
    ):
        self.num_ops, self.magnitude = num_ops, magnitude
        self.operations = None if operations is None else tuple(operations)
        self.fill, self.interp, self.rgb = fill, interp, rgb
        self._operations = tuple(OPERATIONS) if operations is None else tuple(operations)
        unknown = sorted(set(self._operations) - set(OPERATIONS))
        if unknown or not self._operations:
            raise ValueError(f"expected operations of {sorted(OPERATIONS)}, received {unknown}")
        if num_ops < 0 or not 0 <= magnitude <= MOST:
            raise ValueError(
                f"expected num_ops >= 0 and a magnitude from 0 to {MOST}, received "
                f"num_ops={num_ops}, magnitude={magnitude}"
            )

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        drawn = []
        for _ in range(self.num_ops):
            name = self._operations[int(rng.integers(len(self._operations)))]
            sign = 1.0 if rng.random() < 0.5 else -1.0
            drawn.append(OPERATIONS[name](self, img, sign * self.magnitude / MOST))
        return TransformList(drawn)

    def _warped(self, img: np.ndarray, mat: np.ndarray) -> Transform:
        height, width = size_of(img)
        return WarpAffineTransform(mat, (width, height), self.interp, BORDER_CONSTANT, self.fill)


Operation = Callable[[RandAugment, np.ndarray, float], Transform]


def _warp(matrix: Warp) -> Operation:
    def operation(augment: RandAugment, img: np.ndarray, strength: float) -> Transform:
        height, width = size_of(img)
        return augment._warped(img, matrix(strength, height, width))

    return operation


def _shear_x(strength: float, height: int, width: int) -> np.ndarray:
    return around((width / 2, height / 2), np.array([[1, MOST_SHEAR * strength], [0, 1]]))


def _shear_y(strength: float, height: int, width: int) -> np.ndarray:
    return around((width / 2, height / 2), np.array([[1, 0], [MOST_SHEAR * strength, 1]]))


def _translate_x(strength: float, height: int, width: int) -> np.ndarray:
    return np.array([[1, 0, MOST_TRANSLATION * strength * width], [0, 1, 0]])


def _translate_y(strength: float, height: int, width: int) -> np.ndarray:
    return np.array([[1, 0, 0], [0, 1, MOST_TRANSLATION * strength * height]])


def _rotate(strength: float, height: int, width: int) -> np.ndarray:
    return around((width / 2, height / 2), rotation(MOST_DEGREES * strength))


def _brightness(augment: RandAugment, img: np.ndarray, strength: float) -> Transform:
    return PhotometricTransform(scale_and_add, 1 + MOST_ENHANCEMENT * strength, 0.0, True)


def _color(augment: RandAugment, img: np.ndarray, strength: float) -> Transform:
    if channels(img) != 3:
        return NO_OP
    matrix = saturation_matrix(1 + MOST_ENHANCEMENT * strength, augment.rgb)
    return PhotometricTransform(mix_colours, matrix, True)


def _contrast(augment: RandAugment, img: np.ndarray, strength: float) -> Transform:
    rgb = augment.rgb if channels(img) == 3 else None
    return PhotometricTransform(change_contrast, 1 + MOST_ENHANCEMENT * strength, rgb, True)


def _sharpness(augment: RandAugment, img: np.ndarray, strength: float) -> Transform:
    return PhotometricTransform(sharpen, 1 + MOST_ENHANCEMENT * strength)


def _posterize(augment: RandAugment, img: np.ndarray, strength: float) -> Transform:
    return PhotometricTransform(keep_bits, 8 - round(MOST_BITS_LOST * abs(strength)))


def _solarize(augment: RandAugment, img: np.ndarray, strength: float) -> Transform:
    return PhotometricTransform(solarize, 256 * (1 - abs(strength)))


def _auto_contrast(augment: RandAugment, img: np.ndarray, strength: float) -> Transform:
    return PhotometricTransform(stretch)


def _equalize(augment: RandAugment, img: np.ndarray, strength: float) -> Transform:
    return PhotometricTransform(equalize)


def _identity(augment: RandAugment, img: np.ndarray, strength: float) -> Transform:
    return NO_OP


OPERATIONS: dict[str, Operation] = {
    "Identity": _identity,
    "ShearX": _warp(_shear_x),
    "ShearY": _warp(_shear_y),
    "TranslateX": _warp(_translate_x),
    "TranslateY": _warp(_translate_y),
    "Rotate": _warp(_rotate),
    "Brightness": _brightness,
    "Color": _color,
    "Contrast": _contrast,
    "Sharpness": _sharpness,
    "Posterize": _posterize,
    "Solarize": _solarize,
    "AutoContrast": _auto_contrast,
    "Equalize": _equalize,
}
