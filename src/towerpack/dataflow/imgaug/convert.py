"""Other colour spaces and dtypes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from towerpack.dataflow.imgaug.base import PhotometricAugmentor
from towerpack.dataflow.imgaug.opencv import checked_colours, opencv
from towerpack.dataflow.imgaug.pixels import as_uint8, working_float
from towerpack.dataflow.imgaug.transform import PhotometricTransform, Transform


@dataclass(eq=False, repr=False)
class ColorSpace(PhotometricAugmentor):
    """Converts by one of OpenCV's codes: `ColorSpace(cv2.COLOR_RGB2HSV)`.

    With `keepdims`, a result of one channel has an axis for it.
    """

    mode: int
    keepdims: bool = True

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(convert_colours, self.mode, self.keepdims)


def convert_colours(img: np.ndarray, mode: int, keepdims: bool) -> np.ndarray:
    source = img if img.dtype == np.uint8 else img.astype(np.float32, copy=False)
    result = opencv().cvtColor(source, mode)
    if keepdims and result.ndim == 2:
        result = result[:, :, None]
    return result if result.dtype == img.dtype else result.astype(img.dtype)


@dataclass(eq=False, repr=False)
class Grayscale(PhotometricAugmentor):
    """Colours into grey; `rgb` says that the image is RGB, not BGR.

    With `keepdims` the result is HW1, otherwise HW; with `keepshape` it has three equal channels.
    """

    keepdims: bool = True
    rgb: bool = False
    keepshape: bool = False

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        checked_colours(img, "Grayscale")
        return PhotometricTransform(to_grey, self.keepdims, self.rgb, self.keepshape)


def to_grey(img: np.ndarray, keepdims: bool, rgb: bool, keepshape: bool) -> np.ndarray:
    cv2 = opencv()
    grey = convert_colours(img, cv2.COLOR_RGB2GRAY if rgb else cv2.COLOR_BGR2GRAY, keepdims)
    return convert_colours(grey, cv2.COLOR_GRAY2RGB, keepdims) if keepshape else grey


@dataclass(eq=False, repr=False)
class ToUint8(PhotometricAugmentor):
    """Clips to [0, 255] and rounds to uint8."""

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(as_uint8)


@dataclass(eq=False, repr=False)
class ToFloat32(PhotometricAugmentor):
    """The same values as float32."""

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return PhotometricTransform(as_float32)


def as_float32(img: np.ndarray) -> np.ndarray:
    return working_float(img).astype(np.float32, copy=False)
