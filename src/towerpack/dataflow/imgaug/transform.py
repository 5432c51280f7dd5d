"""What an augmentor has drawn: a fixed transform of images, points, boxes and masks.

Coordinates are continuous: (0, 0) is the upper left corner of the image and (w, h) the lower right
one, so the middle of the first pixel is (0.5, 0.5). Every transform keeps to that, and points,
boxes and masks move with the pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np


class Transform:
    """A fixed change to an image, and to what belongs to it.

    Deterministic: the same input gives the same output, each time. An image that is given to it is
    never written into; the result may be a view of it. What a subclass does not implement raises
    NotImplementedError.
    """

    output_size: tuple[int, int] | None = None
    """(height, width) of what `apply_image` gives; None if it is that of its input."""

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        raise self._missing("apply_image")

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        """Where points, an N x 2 array of (x, y), go. They may lie outside the image."""
        raise self._missing("apply_coords")

    def apply_mask(self, mask: np.ndarray) -> np.ndarray:
        """A map of labels, HW or HWC: moved like the image, and no label mixed with another."""
        raise self._missing("apply_mask")

    def apply_segmentation(self, mask: np.ndarray) -> np.ndarray:
        """The other name of `apply_mask`."""
        return self.apply_mask(mask)

    def apply_boxes(self, boxes: np.ndarray) -> np.ndarray:
        """Where boxes, an N x 4 array of (x0, y0, x1, y1), go: the bounds of their corners.

        Clipped to the image, where the transform knows its size. As many as were given: one that
        has left the image is of no area. `filter_boxes` leaves those out.
        """
        return clip_boxes(self._move_boxes(boxes), self.output_size)

    def filter_boxes(
        self, boxes: np.ndarray, min_size: float = 1.0, min_visible: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """The boxes that are still to be seen, clipped, and their numbers among the given ones.

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
        """The boxes, clipped, and how much of each is left."""
        whole = self._move_boxes(boxes)
        clipped = clip_boxes(whole, self.output_size)
        area = box_areas(whole)
        return clipped, box_areas(clipped) / np.where(area > 0, area, 1)

    can_be_followed = False  # whether `followed_by` may give something; then output_size is known

    def followed_by(self, after: Transform) -> Transform | None:
        """One transform of images and masks that does this and the other at once, if there is one.

        Chains ask for it, so that a warp makes only the pixels that the crop behind it keeps.
        """
        return None

    def _missing(self, method: str) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__name__} has no {method}; write one in a subclass, or leave the "
            "augmentor out where it is needed"
        )

    def __add__(self, other: Transform) -> TransformList:
        return TransformList([self, other])

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class TransformList(Transform):
    """Transforms one after another. `a + b` makes one, `+=` adds to one.

    Those that can be done at once are (`Transform.followed_by`): pixels are interpolated once.
    Any other method `apply_...` that all of them have can be called as well.
    """

    def __init__(self, transforms: Iterable[Transform] = ()):
        self.transforms = _flat(transforms)

    @property
    def output_size(self) -> tuple[int, int] | None:  # type: ignore[override]
        sizes = [t.output_size for t in self.transforms if t.output_size is not None]
        return sizes[-1] if sizes else None

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        for transform in fused(self.transforms):
            img = transform.apply_image(img)
        return img

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        for transform in self.transforms:
            coords = transform.apply_coords(coords)
        return coords

    def apply_mask(self, mask: np.ndarray) -> np.ndarray:
        for transform in fused(self.transforms):
            mask = transform.apply_mask(mask)
        return mask

    def apply_boxes(self, boxes: np.ndarray) -> np.ndarray:
        boxes = as_boxes(boxes)
        for transform in self.transforms:
            boxes = transform.apply_boxes(boxes)
        return boxes

    def _visible_boxes(self, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        visible = np.ones(len(boxes))
        for transform in self.transforms:
            boxes, part = transform._visible_boxes(boxes)
            visible = visible * part
        return boxes, visible

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("apply_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

        def apply(x: Any) -> Any:
            for transform in self.transforms:
                x = getattr(transform, name)(x)
            return x

        return apply

    def __iadd__(self, other: Transform) -> TransformList:
        self.transforms = self.transforms + _flat([other])
        return self

    def __iter__(self) -> Iterator[Transform]:
        return iter(self.transforms)

    def __len__(self) -> int:
        return len(self.transforms)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.transforms!r})"


def fused(transforms: Iterable[Transform]) -> list[Transform]:
    """The same for images and masks, in as few transforms as can be."""
    few: list[Transform] = []
    for transform in transforms:
        both = few[-1].followed_by(transform) if few else None
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

    Methods that no function was given for raise NotImplementedError.
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
    """`func(img, *args)`: colours change, and points, boxes and masks stay where they are.

    Made of a function at the top level of a module, so that it can travel to a worker.
    """

    def __init__(self, func: Callable[..., np.ndarray], *args: Any):
        self.func, self.args = func, args

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        return self.func(img, *self.args)

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        return coords

    def apply_mask(self, mask: np.ndarray) -> np.ndarray:
        return mask

    def _move_boxes(self, boxes: np.ndarray) -> np.ndarray:
        return as_boxes(boxes)

    def _visible_boxes(self, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return boxes, np.ones(len(boxes))

    def __repr__(self) -> str:
        name = getattr(self.func, "__name__", repr(self.func))
        return f"{type(self).__name__}({', '.join([name, *map(repr, self.args)])})"


class NoOpTransform(PhotometricTransform):
    """Leaves everything as it is."""

    def __init__(self) -> None:
        super().__init__(_same)

    def __repr__(self) -> str:
        return "NoOpTransform()"


def _same(img: np.ndarray) -> np.ndarray:
    return img


NO_OP = NoOpTransform()


def as_boxes(boxes: Any) -> np.ndarray:
    """N x 4 floats; float32 stays float32."""
    array = np.asarray(boxes)
    if array.dtype.kind != "f":
        array = array.astype(np.float64)
    if array.size == 0:
        return array.reshape(0, 4)
    if array.ndim != 2 or array.shape[1] != 4:
        raise ValueError(
            f"expected boxes as N x 4 of (x0, y0, x1, y1), received shape {array.shape}"
        )
    return array


def clip_boxes(boxes: np.ndarray, size: tuple[int, int] | None) -> np.ndarray:
    if size is None:
        return boxes
    height, width = size
    return np.clip(boxes, 0, np.array([width, height, width, height], boxes.dtype))


def box_areas(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
