"""The transforms that move pixels: resize, crop, flip, transpose, paste, and the affine maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from towerpack.dataflow.imgaug.opencv import (
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
from towerpack.dataflow.imgaug.transform import NO_OP, Transform

Rows = tuple[tuple[int, int, int], tuple[int, int, int]]  # of a 2 x 3 matrix


class GeometricTransform(Transform):
    """Base class of those that move pixels: its repr shows the numbers."""

    def __repr__(self) -> str:
        shown = (f"{k}={v!r}" for k, v in self.__dict__.items() if not k.startswith("_"))
        return f"{type(self).__name__}({', '.join(shown)})"


def as_coords(coords: Any) -> np.ndarray:
    """N x 2 floats; float32 stays float32."""
    array = np.asarray(coords)
    if array.dtype.kind != "f":
        array = array.astype(np.float64)
    if array.size == 0:
        return array.reshape(0, 2)
    if array.ndim != 2 or array.shape[1] != 2:
        raise ValueError(f"expected points as N x 2 of (x, y), received shape {array.shape}")
    return array


class ResizeTransform(GeometricTransform):
    """From h x w to new_h x new_w pixels."""

    def __init__(self, h: int, w: int, new_h: int, new_w: int, interp: int = INTER_LINEAR):
        self.h, self.w, self.new_h, self.new_w, self.interp = h, w, new_h, new_w, interp
        self.output_size = (new_h, new_w)

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        expect_size(img, (self.h, self.w), self)
        if self.output_size == size_of(img):
            return img
        resize, size, interp = opencv().resize, (self.new_w, self.new_h), self.interp
        # At exactly half the size the two are equal, and AREA is the quicker.
        if interp == INTER_LINEAR and (self.new_h * 2, self.new_w * 2) == (self.h, self.w):
            interp = INTER_AREA
        return on_pixels(lambda part: resize(part, size, interpolation=interp), img)

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        coords = as_coords(coords)
        return coords * np.array([self.new_w / self.w, self.new_h / self.h], coords.dtype)

    def apply_mask(self, mask: np.ndarray) -> np.ndarray:
        resize, size = opencv().resize, (self.new_w, self.new_h)
        nearest = INTER_NEAREST_EXACT
        return on_pixels(lambda part: resize(part, size, interpolation=nearest), mask, exact=True)


class CropTransform(GeometricTransform):
    """The h x w pixels from (y0, x0) on: a view, without a copy."""

    def __init__(self, y0: int, x0: int, h: int, w: int):
        self.y0, self.x0, self.h, self.w = y0, x0, h, w
        self.output_size = (h, w)

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        height, width = size_of(img)
        if self.y0 + self.h > height or self.x0 + self.w > width:
            raise ValueError(f"expected an image that {self!r} fits in, received {height}x{width}")
        return img[self.y0 : self.y0 + self.h, self.x0 : self.x0 + self.w]

    def apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return self.apply_image(mask)

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        coords = as_coords(coords)
        return coords - np.array([self.x0, self.y0], coords.dtype)


class FlipTransform(GeometricTransform):
    """Left and right exchanged, or top and bottom: x becomes w - x."""

    def __init__(self, h: int, w: int, horiz: bool = True):
        self.h, self.w, self.horiz = h, w, horiz
        self.output_size = (h, w)

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        expect_size(img, (self.h, self.w), self)
        flip, axis = opencv().flip, 1 if self.horiz else 0
        return on_pixels(lambda part: flip(part, axis), img, exact=True)

    def apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return self.apply_image(mask)

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        coords = as_coords(coords).copy()
        axis, size = (0, self.w) if self.horiz else (1, self.h)
        coords[:, axis] = size - coords[:, axis]
        return coords


class TransposeTransform(GeometricTransform):
    """Rows become columns: (x, y) becomes (y, x)."""

    def __init__(self, h: int, w: int):
        self.h, self.w = h, w
        self.output_size = (w, h)

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        expect_size(img, (self.h, self.w), self)
        return on_pixels(opencv().transpose, img, exact=True)

    def apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return self.apply_image(mask)

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        return as_coords(coords)[:, ::-1].copy()


class PasteTransform(GeometricTransform):
    """The image at (y0, x0) of a larger background, which `fill(shape, img)` makes."""

    def __init__(
        self,
        y0: int,
        x0: int,
        background_shape: tuple[int, int],
        fill: Callable[[tuple[int, int], np.ndarray], np.ndarray],
    ):
        self.y0, self.x0, self._fill = y0, x0, fill
        self.output_size = background_shape

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        return self.paste_onto(img, self._fill(self.output_size, img))  # type: ignore[arg-type]

    def apply_mask(self, mask: np.ndarray) -> np.ndarray:
        shape = (*self.output_size, *mask.shape[2:])  # type: ignore[misc]
        return self.paste_onto(mask, np.zeros(shape, mask.dtype))

    def paste_onto(self, img: np.ndarray, background: np.ndarray) -> np.ndarray:
        height, width = size_of(img)
        if self.y0 + height > background.shape[0] or self.x0 + width > background.shape[1]:
            raise ValueError(f"expected an image that fits into {self!r}, received {img.shape}")
        background[self.y0 : self.y0 + height, self.x0 : self.x0 + width] = img
        return background

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        coords = as_coords(coords)
        return coords + np.array([self.x0, self.y0], coords.dtype)


class WarpAffineTransform(GeometricTransform):
    """An affine map.

    `mat` is 2 x 3 and maps the middles of pixels, counted from 0, as OpenCV's do; `dsize` is
    (width, height) of the result. In masks, what comes from outside the image is 0 where `border`
    is a constant. A crop, flip or transposition behind it in a list is done in the same warp: the
    same pixels, but for OpenCV's rounding of places to 1/32 of a pixel.
    """

    can_be_followed = True

    def __init__(
        self,
        mat: np.ndarray,
        dsize: tuple[int, int],
        interp: int = INTER_LINEAR,
        border: int = BORDER_REPLICATE,
        border_value: Colour = 0,
    ):
        self.mat = np.asarray(mat, np.float64)
        if self.mat.shape != (2, 3):
            raise ValueError(f"expected a 2 x 3 matrix, received shape {self.mat.shape}")
        self.dsize = (int(dsize[0]), int(dsize[1]))
        self.interp, self.border, self.border_value = interp, border, border_value
        self.output_size: tuple[int, int] = self.dsize[::-1]

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        return self._warp(img, self.interp, self.border_value)

    def apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return self._warp(mask, INTER_NEAREST, 0, exact=True)

    def _warp(
        self, img: np.ndarray, interp: int, border_value: Colour, exact: bool = False
    ) -> np.ndarray:
        warp, value = opencv().warpAffine, scalar(border_value)

        def function(part: np.ndarray) -> np.ndarray:
            return warp(
                part,
                self.mat,
                self.dsize,
                flags=interp,
                borderMode=self.border,
                borderValue=value,
            )

        return on_pixels(function, img, exact)

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        coords = as_coords(coords)
        # The matrix speaks of the middles of pixels, and the first one's is (0.5, 0.5) here.
        moved = (coords - 0.5) @ self.mat[:, :2].T + (self.mat[:, 2] + 0.5)
        return moved.astype(coords.dtype, copy=False)

    def followed_by(self, after: Transform) -> Transform | None:
        if after is NO_OP:
            return self
        step = _whole_pixels(after, self.output_size)
        if step is None:
            return None
        (a, b, x), (c, d, y) = step
        mat = np.array([[a, b], [c, d]]) @ self.mat
        mat[:, 2] += (x, y)
        height, width = after.output_size  # type: ignore[misc] # since it moves whole pixels
        return WarpAffineTransform(
            mat, (width, height), self.interp, self.border, self.border_value
        )


def _whole_pixels(transform: Transform, size: tuple[int, int]) -> Rows | None:
    """The 2 x 3 matrix of a crop, flip or transposition that fits an image of this size."""
    kind, (height, width) = type(transform), size
    # Of exactly these classes: a subclass may do more.
    if isinstance(transform, CropTransform) and kind is CropTransform:
        inside = transform.y0 + transform.h <= height and transform.x0 + transform.w <= width
        return ((1, 0, -transform.x0), (0, 1, -transform.y0)) if inside else None
    if isinstance(transform, FlipTransform) and kind is FlipTransform:
        if (transform.h, transform.w) != size:
            return None
        return (
            ((-1, 0, width - 1), (0, 1, 0)) if transform.horiz else ((1, 0, 0), (0, -1, height - 1))
        )
    if isinstance(transform, TransposeTransform) and kind is TransposeTransform:
        return ((0, 1, 0), (1, 0, 0)) if (transform.h, transform.w) == size else None
    return None


def padding(
    top: int, bottom: int, left: int, right: int, border: int = BORDER_CONSTANT, value: Colour = 0
) -> Callable[[np.ndarray], np.ndarray]:
    """A function that puts a border around images."""
    colour = scalar(value)

    def pad(part: np.ndarray) -> np.ndarray:
        # Positional: it takes OpenCV a microsecond less, the price of a small image's border.
        return opencv().copyMakeBorder(part, top, bottom, left, right, border, None, colour)

    return pad


class PadTransform(GeometricTransform):
    """A border of so many pixels on each side; `border` is OpenCV's kind of it."""

    def __init__(
        self,
        size: tuple[int, int],
        top: int,
        bottom: int,
        left: int,
        right: int,
        border: int = BORDER_CONSTANT,
        value: Colour = 0,
    ):
        self.top, self.bottom, self.left, self.right = top, bottom, left, right
        self.border, self.value = border, value
        self.output_size = (size[0] + top + bottom, size[1] + left + right)

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        return self._pad(img, self.value)

    def apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return self._pad(mask, 0, exact=True)

    def _pad(self, img: np.ndarray, value: Colour, exact: bool = False) -> np.ndarray:
        pad = padding(self.top, self.bottom, self.left, self.right, self.border, value)
        return on_pixels(pad, img, exact)

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        coords = as_coords(coords)
        return coords + np.array([self.left, self.top], coords.dtype)


def expect_size(img: np.ndarray, size: tuple[int, int], transform: Transform) -> None:
    if size_of(img) != size:
        raise ValueError(
            f"{transform!r} was made for images of {size[0]}x{size[1]}, received "
            f"{img.shape[0]}x{img.shape[1]}: images that share a transform need one size"
        )
