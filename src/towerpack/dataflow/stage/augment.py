"""Flows that augment the images of datapoints, and their points, boxes and masks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from towerpack.core import logger
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.functions import component
from towerpack.dataflow.imgaug.base import ImageAugmentor
from towerpack.dataflow.imgaug.combine import as_augmentor
from towerpack.dataflow.imgaug.pixels import checked_image
from towerpack.dataflow.imgaug.transform import Transform, as_coords
from towerpack.dataflow.stage.map import MapData

Augmentors = ImageAugmentor | Iterable[ImageAugmentor]
Index = int | str


@dataclass(frozen=True)
class BoxComponent:
    """The component with boxes, N x 4 of (x0, y0, x1, y1), and which boxes are kept.

    Boxes are clipped to the image. A box is dropped if a side is shorter than `min_size` pixels or
    if less than `min_visible` (0 to 1) of its area is inside. Its row in the components `labels` is
    dropped with it.
    """

    index: Index
    labels: Sequence[Index] = ()
    min_size: float = 1.0
    min_visible: float = 0.0

    def __post_init__(self) -> None:
        if self.min_size < 0 or not 0 <= self.min_visible <= 1:
            raise ValueError(
                "expected min_size >= 0 and min_visible from 0 to 1, received "
                f"{self.min_size} and {self.min_visible}"
            )

    def apply(self, transform: Transform, datapoint: Any) -> None:
        given = np.asarray(component(datapoint, self.index))
        boxes, kept = transform.filter_boxes(given, self.min_size, self.min_visible)
        datapoint[self.index] = boxes
        for index in self.labels:
            rows = component(datapoint, index)
            if len(rows) != len(given):
                raise ValueError(
                    f"expected a row of component {index!r} for each of {len(given)} boxes, "
                    f"received {len(rows)}"
                )
            chosen = np.asarray(rows)[kept]
            datapoint[index] = chosen if isinstance(rows, np.ndarray) else chosen.tolist()


class _Augmenting(MapData):
    """Base of the three stages: the augmentors, and what happens when one fails."""

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        augmentors: Augmentors,
        copy: bool,
        catch_exceptions: bool,
        seed: int,
    ):
        self.augs = as_augmentor(augmentors)
        self.copy, self.catch_exceptions = copy, catch_exceptions
        self.failures = 0
        super().__init__(ds, self._augmented, seed=seed)

    def label(self) -> str:
        return type(self).__name__

    @property
    def drops(self) -> bool | None:
        return (self.ds.drops or None) if self.catch_exceptions else self.ds.drops

    def _augmented(self, datapoint: Any, rng: np.random.Generator) -> Any:
        if isinstance(datapoint, tuple):
            datapoint = list(datapoint)
        if not self.catch_exceptions:
            return self._augment(datapoint, rng)
        try:
            return self._augment(datapoint, rng)
        except Exception as error:  # noqa: BLE001 (as the user requested)
            self.failures += 1
            logger.warning(
                "%s dropped a datapoint, failure %d: %s: %s",
                *(self.label(), self.failures, type(error).__name__, error),
            )
            return None

    def _augment(self, datapoint: Any, rng: np.random.Generator) -> Any:
        raise NotImplementedError

    def _image(self, datapoint: Any, index: Index) -> np.ndarray:
        img = checked_image(component(datapoint, index))
        # Only augmentors of old scripts and functions of the user may write into it.
        return img.copy() if self.copy and self.augs.writes_in_place else img

    def _own(self, result: np.ndarray, img: np.ndarray) -> np.ndarray:
        """The result, as a copy if it must not be a view of the image."""
        if self.copy and isinstance(result, np.ndarray) and np.may_share_memory(result, img):
            return result.copy()
        return result

    def _note_drop(self) -> None:
        self._dropped = True  # each one was logged already


class AugmentImageComponent(_Augmenting):
    """Augments one component of every datapoint, an image.

    Keeps the order, the number of datapoints and random access. The random numbers are fixed by
    (seed, epoch, index): they are the same for any number of workers and change with every epoch.

    With `copy` (the default) the image of the input is never changed and the result shares no
    memory with it. With `catch_exceptions` a datapoint whose augmentation fails is dropped, logged
    and counted in `failures` (of this process). `len()` is unknown then.

    >>> from towerpack.dataflow import DataFromArrays, imgaug
    >>> images = np.arange(2 * 8 * 8, dtype=np.uint8).reshape(2, 8, 8)
    >>> flow = AugmentImageComponent(DataFromArrays(images), [imgaug.RandomCrop(4)])
    >>> flow[0][0].shape
    (4, 4)
    """

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        augmentors: Augmentors,
        index: Index = 0,
        copy: bool = True,
        catch_exceptions: bool = False,
        *,
        seed: int = 0,
    ):
        super().__init__(ds, augmentors, copy, catch_exceptions, seed)
        self.index = index

    def _augment(self, datapoint: Any, rng: np.random.Generator) -> Any:
        img = self._image(datapoint, self.index)
        result = self.augs.draw(img, rng).apply_image(img)
        datapoint[self.index] = self._own(result, img)
        return datapoint


class AugmentImageComponents(_Augmenting):
    """Augments several components of every datapoint together: images, points, masks, boxes.

    One transform is drawn for the first image and applied to all: to the images in `index`, which
    have the same size, to points in `coords_index` (N x 2 of (x, y)), to masks in `mask_index`
    (with nearest-neighbour interpolation, which does not mix labels), and to the boxes of `boxes`,
    a `BoxComponent`. Everything else is as in `AugmentImageComponent`.

    >>> from towerpack.dataflow import imgaug
    >>> datapoint = [np.zeros((8, 8, 3), np.uint8), np.array([[1.0, 1.0, 3.0, 4.0]]), [7]]
    >>> flow = AugmentImageComponents(
    ...     [datapoint], [imgaug.Flip(horiz=True, prob=1)], index=(0,),
    ...     boxes=BoxComponent(1, labels=(2,)))
    >>> flow[0][1].tolist(), flow[0][2]
    ([[5.0, 1.0, 7.0, 4.0]], [7])
    """

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        augmentors: Augmentors,
        index: Sequence[Index] = (0, 1),
        coords_index: Sequence[Index] = (),
        copy: bool = True,
        catch_exceptions: bool = False,
        *,
        mask_index: Sequence[Index] = (),
        boxes: BoxComponent | None = None,
        seed: int = 0,
    ):
        super().__init__(ds, augmentors, copy, catch_exceptions, seed)
        self.index, self.coords_index = tuple(index), tuple(coords_index)
        self.mask_index, self.boxes = tuple(mask_index), boxes
        if not self.index:
            raise ValueError("expected the index of at least one image, received none")

    def _augment(self, datapoint: Any, rng: np.random.Generator) -> Any:
        images = [self._image(datapoint, index) for index in self.index]
        for index, img in zip(self.index, images, strict=True):
            if img.shape[:2] != images[0].shape[:2]:
                raise ValueError(
                    "expected images of the same size, because they share a transform; component "
                    f"{self.index[0]!r} is {images[0].shape}, {index!r} is {img.shape}"
                )
        transform = self.augs.draw(images[0], rng)
        for index, img in zip(self.index, images, strict=True):
            datapoint[index] = self._own(transform.apply_image(img), img)
        for index in self.coords_index:
            datapoint[index] = transform.apply_coords(as_coords(component(datapoint, index)))
        for index in self.mask_index:
            mask = component(datapoint, index)
            datapoint[index] = self._own(transform.apply_mask(mask), mask)
        if self.boxes is not None:
            self.boxes.apply(transform, datapoint)
        return datapoint


class AugmentImageCoordinates(AugmentImageComponents):
    """Augments an image and the points on it, N x 2 of (x, y).

    This is `AugmentImageComponents` with one image and one component of points.
    """

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        augmentors: Augmentors,
        img_index: Index = 0,
        coords_index: Index = 1,
        copy: bool = True,
        catch_exceptions: bool = False,
        *,
        seed: int = 0,
    ):
        super().__init__(
            ds, augmentors, (img_index,), (coords_index,), copy, catch_exceptions, seed=seed
        )
