"""Fixed transforms of images, points, boxes and masks, which augmentors draw.

Coordinates are continuous: (0, 0) is the upper left corner of the image and (w, h) the lower right
one, so the centre of the first pixel is (0.5, 0.5). Points, boxes and masks move with the pixels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from towerpack.dataflow.imgaug.pixels import size_of


class Transform:
    """A fixed change to an image and to its points, boxes and masks.

    It is deterministic. It never writes into the image that it receives, but the result may be a
    view of that image. Methods that a subclass does not implement raise NotImplementedError.
    """

    output_size: tuple[int, int] | None = None
    """(height, width) of the result of `apply_image`; None if it does not change."""

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        raise self._missing("apply_image")

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        """Moves points, an N x 2 array of (x, y). They may lie outside the image."""
        raise self._missing("apply_coords")

    def apply_mask(self, mask: np.ndarray) -> np.ndarray:
        """Moves a map of labels, HW or HWC, like the image, without mixing labels."""
        raise self._missing("apply_mask")

    def apply_segmentation(self, mask: np.ndarray) -> np.ndarray:
        """Another name for `apply_mask`."""
        return self.apply_mask(mask)

    def apply_boxes(self, boxes: np.ndarray) -> np.ndarray:
        """Moves boxes, an N x 4 array of (x0, y0, x1, y1), to the bounds of their moved corners.

        They are clipped to the image if the transform knows its size. A box that has left the image
        stays in the array, with no area; `filter_boxes` removes it.
        """
        return clip_boxes(self._move_boxes(boxes), self.output_size)

    def filter_boxes(
        self, boxes: np.ndarray, min_size: float = 1.0, min_visible: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """The boxes that are still visible, clipped, and their indices among the given ones.

        A box is kept if each of its sides has at least `min_size` pixels, and if at least
        `min_visible` (0 to 1) of its area is inside the image.

        >>> from towerpack.dataflow.imgaug import CropTransform
        >>> crop = CropTransform(0, 0, 10, 10)
        >>> boxes, kept = crop.filter_boxes(np.array([[5, 5, 15, 9], [20, 20, 30, 30]]))
        >>> boxes.tolist(), kept.tolist()
        ([[5.0, 5.0, 10.0, 9.0]], [0])
        """
        moved, visible = self._visible_boxes(as_boxes(boxes))
        sides = moved[:, 2:] - moved[:, :2]
        kept = np.flatnonzero((sides >= min_size).all(axis=1) & (visible >= min_visible))
        return moved[kept], kept

    def _move_boxes(self, boxes: np.ndarray) -> np.ndarray:
        boxes = as_boxes(boxes)
        corners = boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 2)
        moved = np.asarray(self.apply_coords(corners)).reshape(-1, 4, 2)
        return np.concatenate([moved.min(axis=1), moved.max(axis=1)], axis=1)

    def _visible_boxes(self, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The boxes, clipped, and the share of each that is inside."""
        whole = self._move_boxes(boxes)
        clipped = clip_boxes(whole, self.output_size)
        area = box_areas(whole)
        return clipped, box_areas(clipped) / np.where(area > 0, area, 1)

    def fused_with(self, after: Transform) -> Transform | None:
        """One transform of images and masks that does this and then the other, if there is one.

        Chains use it, so that a warp computes only the pixels that a crop after it keeps.
        """
        return None

    def _missing(self, method: str) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__name__} has no {method}; write one in a subclass, or leave the "
            "augmentor out of this flow"
        )

    def __add__(self, other: Transform) -> TransformList:
        return TransformList([self, other])

    def __repr__(self) -> str:
        shown = (f"{k}={v!r}" for k, v in self.__dict__.items() if not k.startswith("_"))
        return f"{type(self).__name__}({', '.join(shown)})"


class TransformList(Transform):
    """Transforms one after another. `a + b` makes a list, `+=` extends it.

    Transforms are fused where possible, so that pixels are interpolated once. Any other method
    `apply_...` that all of them have can be called as well.
    """

    def __init__(self, transforms: Iterable[Transform] = ()):
        self.transforms = _flat(transforms)

    @property
    def output_size(self) -> tuple[int, int] | None:  # type: ignore[override]
        sizes = [t.output_size for t in self.transforms if t.output_size is not None]
        return sizes[-1] if sizes else None

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        return _apply_each(fused(self.transforms), "apply_image", img)

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        return _apply_each(self.transforms, "apply_coords", coords)

    def apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return _apply_each(fused(self.transforms), "apply_mask", mask)

    def apply_boxes(self, boxes: np.ndarray) -> np.ndarray:
        return _apply_each(self.transforms, "apply_boxes", as_boxes(boxes))

    def _visible_boxes(self, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        visible = np.ones(len(boxes))
        for transform in self.transforms:
            boxes, part = transform._visible_boxes(boxes)
            visible = visible * part
        return boxes, visible

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("apply_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return functools.partial(_apply_each, self.transforms, name)

    def __iadd__(self, other: Transform) -> TransformList:
        self.transforms = self.transforms + _flat([other])
        return self

    def __iter__(self) -> Iterator[Transform]:
        return iter(self.transforms)

    def __len__(self) -> int:
        return len(self.transforms)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.transforms!r})"


def _apply_each(transforms: Iterable[Transform], method: str, value: Any) -> Any:
    for transform in transforms:
        value = getattr(transform, method)(value)
    return value


def fused(transforms: Iterable[Transform]) -> list[Transform]:
    """The fewest transforms that do the same to images and masks."""
    few: list[Transform] = []
    for transform in transforms:
        both = few[-1].fused_with(transform) if few else None
        if both is None:
            few.append(transform)
        else:
            few[-1] = both
    return few


def _flat(transforms: Iterable[Transform]) -> list[Transform]:
    flat: list[Transform] = []
    for transform in transforms:
        if not isinstance(transform, Transform):
            raise TypeError(f"expected Transforms, received {transform!r}")
        flat.extend(transform.transforms if type(transform) is TransformList else [transform])
    return flat


class TransformFactory(Transform):
    """A transform from functions: `TransformFactory("negative", apply_image=lambda x: 255 - x)`.

    Methods without a function raise NotImplementedError.
    """

    def __init__(self, name: str = "TransformFactory", **functions: Callable[[Any], Any]):
        for method in functions:
            if not method.startswith("apply_"):
                raise TypeError(
                    f"expected functions named apply_image, apply_coords, ...; received {method!r}"
                )
        self.name = name
        self.__dict__.update(functions)

    def __repr__(self) -> str:
        return self.name


class PhotometricTransform(Transform):
    """`func(img, *args)`: changes colours, while points, boxes and masks stay in place.

    `func` is at the top level of a module, so that it can be sent to a worker.
    """

    def __init__(self, func: Callable[..., np.ndarray], *args: Any):
        self.func, self.args = func, args

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        return self.func(img, *self.args)

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        return coords

    def apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return mask

    def __repr__(self) -> str:
        name = getattr(self.func, "__name__", repr(self.func))
        return f"{type(self).__name__}({', '.join([name, *map(repr, self.args)])})"


class NoOpTransform(PhotometricTransform):
    """Changes nothing."""

    def __init__(self) -> None:
        super().__init__(_same)

    def __repr__(self) -> str:
        return "NoOpTransform()"


def _same(img: np.ndarray) -> np.ndarray:
    return img


NO_OP = NoOpTransform()


def as_boxes(boxes: Any) -> np.ndarray:
    return _as_rows(boxes, 4, "boxes as N x 4 of (x0, y0, x1, y1)")


def as_coords(coords: Any) -> np.ndarray:
    return _as_rows(coords, 2, "points as N x 2 of (x, y)")


def _as_rows(values: Any, width: int, expected: str) -> np.ndarray:
    """N x `width` floats; float32 stays float32."""
    array = np.asarray(values)
    if array.dtype.kind != "f":
        array = array.astype(np.float64)
    if array.size == 0:
        return array.reshape(0, width)
    if array.ndim != 2 or array.shape[1] != width:
        raise ValueError(f"expected {expected}, received shape {array.shape}")
    return array


def clip_boxes(boxes: np.ndarray, size: tuple[int, int] | None) -> np.ndarray:
    if size is None:
        return boxes
    height, width = size
    return np.clip(boxes, 0, np.array([width, height, width, height], boxes.dtype))


def box_areas(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def expect_size(img: np.ndarray, size: tuple[int, int], transform: Transform) -> None:
    if size_of(img) != size:
        raise ValueError(
            f"{transform!r} was made for images of {size[0]}x{size[1]}, received "
            f"{img.shape[0]}x{img.shape[1]}; images that share a transform must have the same size"
        )
