"""The transforms that move pixels: resize, crop, flip, transpose, paste, pad and affine maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from towerpack.dataflow.imgaug.pixels import (
    BORDER_CONSTANT,
    BORDER_REPLICATE,
    INTER_AREA,
    INTER_LINEAR,
    INTER_NEAREST,
    INTER_NEAREST_EXACT,
    Colour,
    on_pixels,
    opencv,
    scalar,
    size_of,
)
from towerpack.dataflow.imgaug.transform import NoOpTransform, Transform, as_coords, expect_size

Matrix = tuple[tuple[float, float, float], tuple[float, float, float]]


class MatrixTransform(Transform):
    """Base class: a point (x, y) moves by a 2 x 3 matrix, whose third column is added."""

    _matrix: Matrix

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        coords = as_coords(coords)
        matrix = np.array(self._matrix, coords.dtype)
        return coords @ matrix[:, :2].T + matrix[:, 2]


class ResizeTransform(MatrixTransform):
    """Resizes from h x w to new_h x new_w pixels."""

    def __init__(self, h: int, w: int, new_h: int, new_w: int, interp: int = INTER_LINEAR):
        self.h, self.w, self.new_h, self.new_w, self.interp = h, w, new_h, new_w, interp
        self.output_size = (new_h, new_w)
        self._matrix = ((new_w / w, 0, 0), (0, new_h / h, 0))

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        expect_size(img, (self.h, self.w), self)
        if self.output_size == size_of(img):
            return img
        interp = self.interp
        # At exactly half the size both give the same, and AREA is faster.
        if interp == INTER_LINEAR and (self.new_h * 2, self.new_w * 2) == (self.h, self.w):
            interp = INTER_AREA
        return self._resize(img, interp)

    def apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return self._resize(mask, INTER_NEAREST_EXACT, exact=True)

    def _resize(self, img: np.ndarray, interp: int, exact: bool = False) -> np.ndarray:
        resize, size = opencv().resize, (self.new_w, self.new_h)
        return on_pixels(lambda part: resize(part, size, interpolation=interp), img, exact)


class PixelsTransform(MatrixTransform):
    """Base class: keeps all pixels of an image of h x w, or a part, in another order."""

    h: int
    w: int
    output_size: tuple[int, int]

    def apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return self.apply_image(mask)

    def fits(self, size: tuple[int, int]) -> bool:
        return size == (self.h, self.w)


class CropTransform(PixelsTransform):
    """Takes h x w pixels from (y0, x0); the result is a view."""

    def __init__(self, y0: int, x0: int, h: int, w: int):
        self.y0, self.x0, self.h, self.w = y0, x0, h, w
        self.output_size = (h, w)
        self._matrix = ((1, 0, -x0), (0, 1, -y0))

    def fits(self, size: tuple[int, int]) -> bool:
        return self.y0 + self.h <= size[0] and self.x0 + self.w <= size[1]

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        height, width = size_of(img)
        if not self.fits((height, width)):
            raise ValueError(f"expected an image that {self!r} fits in, received {height}x{width}")
        return img[self.y0 : self.y0 + self.h, self.x0 : self.x0 + self.w]


class FlipTransform(PixelsTransform):
    """Exchanges left and right (x becomes w - x), or top and bottom."""

    def __init__(self, h: int, w: int, horiz: bool = True):
        self.h, self.w, self.horiz = h, w, horiz
        self.output_size = (h, w)
        self._matrix = ((-1, 0, w), (0, 1, 0)) if horiz else ((1, 0, 0), (0, -1, h))

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        expect_size(img, (self.h, self.w), self)
        flip, axis = opencv().flip, 1 if self.horiz else 0
        return on_pixels(lambda part: flip(part, axis), img, exact=True)


class TransposeTransform(PixelsTransform):
    """Exchanges rows and columns: (x, y) becomes (y, x)."""

    _matrix = ((0, 1, 0), (1, 0, 0))

    def __init__(self, h: int, w: int):
        self.h, self.w = h, w
        self.output_size = (w, h)

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        expect_size(img, (self.h, self.w), self)
        return on_pixels(opencv().transpose, img, exact=True)


class PasteTransform(MatrixTransform):
    """Puts the image at (y0, x0) of a larger background, which `fill(shape, img)` makes."""

    def __init__(
        self,
        y0: int,
        x0: int,
        background_shape: tuple[int, int],
        fill: Callable[[tuple[int, int], np.ndarray], np.ndarray],
    ):
        self.y0, self.x0, self._fill = y0, x0, fill
        self.output_size: tuple[int, int] = background_shape
        self._matrix = ((1, 0, x0), (0, 1, y0))

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        return self.paste_onto(img, self._fill(self.output_size, img))

    def apply_mask(self, mask: np.ndarray) -> np.ndarray:
        shape = (*self.output_size, *mask.shape[2:])
        return self.paste_onto(mask, np.zeros(shape, mask.dtype))

    def paste_onto(self, img: np.ndarray, background: np.ndarray) -> np.ndarray:
        height, width = size_of(img)
        if self.y0 + height > background.shape[0] or self.x0 + width > background.shape[1]:
            raise ValueError(f"expected an image that fits into {self!r}, received {img.shape}")
        background[self.y0 : self.y0 + height, self.x0 : self.x0 + width] = img
        return background


@dataclass(eq=False, repr=False)
class WarpAffineTransform(Transform):
    """An affine map.

    `mat` is 2 x 3 and maps the centres of pixels, counted from 0, as in OpenCV; `dsize` is the
    (width, height) of the result. With a constant `border`, masks are 0 outside the image. A crop,
    flip or transposition that follows in a list is fused into the warp. The pixels are the same,
    except for OpenCV's rounding of positions to 1/32 of a pixel.
    """

    mat: np.ndarray
    dsize: tuple[int, int]
    interp: int = INTER_LINEAR
    border: int = BORDER_REPLICATE
    border_value: Colour = 0

    def __post_init__(self) -> None:
        self.mat = np.asarray(self.mat, np.float64)
        if self.mat.shape != (2, 3):
            raise ValueError(f"expected a 2 x 3 matrix, received shape {self.mat.shape}")
        self.dsize = (int(self.dsize[0]), int(self.dsize[1]))
        self.output_size: tuple[int, int] = self.dsize[::-1]

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        return self._warp(img, self.interp, self.border_value)

    def apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return self._warp(mask, INTER_NEAREST, 0, exact=True)

    def _warp(
        self, img: np.ndarray, interp: int, border_value: Colour, exact: bool = False
    ) -> np.ndarray:
        warp, options = opencv().warpAffine, (None, interp, self.border, scalar(border_value))
        return on_pixels(lambda part: warp(part, self.mat, self.dsize, *options), img, exact)

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        coords = as_coords(coords)
        # The matrix maps the centres of pixels; the first centre is (0.5, 0.5) here.
        moved = (coords - 0.5) @ self.mat[:, :2].T + (self.mat[:, 2] + 0.5)
        return moved.astype(coords.dtype, copy=False)

    def fused_with(self, after: Transform) -> Transform | None:
        if isinstance(after, NoOpTransform):
            return self
        # Only these very classes, because a subclass may do more.
        known = type(after) in (CropTransform, FlipTransform, TransposeTransform)
        if not known or not isinstance(after, PixelsTransform) or not after.fits(self.output_size):
            return None
        matrix = np.array(after._matrix, np.float64)
        mat = matrix[:, :2] @ self.mat
        # The first centre is (0, 0) in `mat`, and (0.5, 0.5) in the other matrix.
        mat[:, 2] += matrix[:, 2] + matrix[:, :2].sum(axis=1) / 2 - 0.5
        options = self.interp, self.border, self.border_value
        return WarpAffineTransform(mat, after.output_size[::-1], *options)


@dataclass(eq=False, repr=False)
class PadTransform(MatrixTransform):
    """Adds a border of these widths in pixels; `border` is OpenCV's type of border."""

    size: tuple[int, int]
    top: int
    bottom: int
    left: int
    right: int
    border: int = BORDER_CONSTANT
    value: Colour = 0

    def __post_init__(self) -> None:
        height, width = self.size
        self.output_size = (height + self.top + self.bottom, width + self.left + self.right)
        self._matrix = ((1, 0, self.left), (0, 1, self.top))

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        return self._pad(img, self.value)

    def apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return self._pad(mask, 0, exact=True)

    def _pad(self, img: np.ndarray, value: Colour, exact: bool = False) -> np.ndarray:
        pad, colour = opencv().copyMakeBorder, scalar(value)
        sides = self.top, self.bottom, self.left, self.right, self.border
        # Positional arguments save a microsecond, as much as the border of a small image costs.
        return on_pixels(lambda part: pad(part, *sides, None, colour), img, exact)
