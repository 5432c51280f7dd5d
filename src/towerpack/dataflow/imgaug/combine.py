"""Augmentors made of others (lists, random choices), of functions, and of other libraries."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from towerpack.core.optional import require
from towerpack.dataflow.imgaug.base import ImageAugmentor, checked_augmentor, expect
from towerpack.dataflow.imgaug.geometric import WarpAffineTransform
from towerpack.dataflow.imgaug.transform import (
    NO_OP,
    Transform,
    TransformFactory,
    TransformList,
    as_coords,
)


class AugmentorList(ImageAugmentor):
    """Applies augmentors one after another.

    Each draws for the image that the one before it has made. The transform of a list therefore
    draws all parts but the first when it is applied to an image for the first time: apply it to
    points, boxes or masks after the image.

    >>> from towerpack.dataflow.imgaug import Flip, RandomCrop
    >>> augs = AugmentorList([Flip(horiz=True), RandomCrop(4)])
    >>> augs.augment(np.zeros((8, 8, 3), np.uint8)).shape
    (4, 4, 3)
    """

    def __init__(self, augmentors: Iterable[ImageAugmentor]):
        self.augmentors = [checked_augmentor(augmentor) for augmentor in augmentors]
        self._writes = any(augmentor.writes_in_place for augmentor in self.augmentors)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        if not self.augmentors:
            return TransformList()
        return LazyTransformList(self.augmentors[0].draw(img, rng), self.augmentors[1:], rng)

    def __repr__(self) -> str:
        return f"AugmentorList({self.augmentors!r})"


class LazyTransformList(TransformList):
    """Transforms of which all but the first are drawn while they are applied to an image."""

    def __init__(
        self, first: Transform, augmentors: Sequence[ImageAugmentor], rng: np.random.Generator
    ):
        # Not flattened, because the first may be a lazy list itself.
        self._parts = [first]
        self._to_draw = list(augmentors)
        self._rng = rng

    @property
    def transforms(self) -> list[Transform]:
        if self._to_draw:
            raise RuntimeError(
                "expected apply_image to be called first, then apply_coords, apply_boxes or "
                "apply_mask: in a list of augmentors each draws for the image that the one before "
                "it makes, and so far only the first has drawn"
            )
        return self._parts

    @transforms.setter
    def transforms(self, value: list[Transform]) -> None:
        self._parts = value

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        # A transform is applied when the one after it cannot be fused with it, or when an augmentor
        # needs the pixels to draw.
        pending: Transform = NO_OP
        for number in range(len(self._parts) + len(self._to_draw)):
            if number == len(self._parts):
                augmentor = self._to_draw[0]
                if augmentor.draws_from_shape and isinstance(pending, WarpAffineTransform):
                    shape = (*pending.output_size, *img.shape[2:])
                    shown = np.broadcast_to(img.dtype.type(0), shape)
                else:
                    shown = img = pending.apply_image(img)
                    pending = NO_OP
                self._parts.append(augmentor.draw(shown, self._rng))
                del self._to_draw[0]
            transform = self._parts[number]
            both = pending.fused_with(transform)
            if both is None:
                img, both = pending.apply_image(img), transform
            pending = both
        return pending.apply_image(img)


def as_augmentor(augmentors: ImageAugmentor | Iterable[ImageAugmentor]) -> ImageAugmentor:
    """Makes one augmentor of a list; returns a single augmentor as it is."""
    if isinstance(augmentors, Iterable) and not isinstance(augmentors, ImageAugmentor):
        return AugmentorList(augmentors)
    return checked_augmentor(augmentors)


@dataclass(eq=False, repr=False)
class Identity(ImageAugmentor):
    """Changes nothing."""

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return NO_OP


@dataclass(eq=False, repr=False)
class RandomApplyAug(ImageAugmentor):
    """Applies `aug` with probability `prob`, and otherwise changes nothing."""

    aug: ImageAugmentor
    prob: float

    def __post_init__(self) -> None:
        self._writes = checked_augmentor(self.aug).writes_in_place
        expect(0 <= self.prob <= 1, "a probability from 0 to 1", self.prob)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return self.aug.draw(img, rng) if rng.random() < self.prob else NO_OP


class RandomChooseAug(ImageAugmentor):
    """Applies one of several augmentors, with equal probability or given as (augmentor, weight).

    >>> from towerpack.dataflow.imgaug import Flip, Transpose
    >>> choose = RandomChooseAug([(Flip(horiz=True), 3), (Transpose(), 1)])
    """

    def __init__(
        self, augmentors: Sequence[ImageAugmentor] | Sequence[tuple[ImageAugmentor, float]]
    ):
        self.augmentors = list(augmentors)
        pairs = [a if isinstance(a, tuple) else (a, 1.0) for a in self.augmentors]
        self._choices = [checked_augmentor(augmentor) for augmentor, _ in pairs]
        self._writes = any(augmentor.writes_in_place for augmentor in self._choices)
        weights = np.array([weight for _, weight in pairs], np.float64)
        usable = (weights >= 0).all() and weights.sum() > 0
        expect(usable, "at least one augmentor with a weight > 0, and none < 0", self.augmentors)
        self._ends = np.cumsum(weights / weights.sum())

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        chosen = int(np.searchsorted(self._ends, rng.random(), side="right"))
        return self._choices[min(chosen, len(self._choices) - 1)].draw(img, rng)


class RandomOrderAug(ImageAugmentor):
    """Applies all of several augmentors, in a random order.

    Each draws for the original image, so they must not change the image's size.
    """

    def __init__(self, augmentors: Sequence[ImageAugmentor]):
        self.augmentors = [checked_augmentor(augmentor) for augmentor in augmentors]
        self._writes = any(augmentor.writes_in_place for augmentor in self.augmentors)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        drawn = [augmentor.draw(img, rng) for augmentor in self.augmentors]
        return TransformList([drawn[i] for i in rng.permutation(len(drawn))])


@dataclass(eq=False, repr=False)
class MapImage(ImageAugmentor):
    """Applies your own function to the image, and `coord_func` to points.

    >>> MapImage(lambda img: 255 - img).augment(np.zeros((1, 1), np.uint8)).item()
    255
    """

    func: Callable[[np.ndarray], np.ndarray]
    coord_func: Callable[[np.ndarray], np.ndarray] | None = None

    def __post_init__(self) -> None:
        if not callable(self.func):
            raise TypeError(f"expected a function of an image, received {self.func!r}")

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        functions: dict[str, Callable[[Any], Any]] = {"apply_image": self.func}
        if self.coord_func is not None:
            functions["apply_coords"] = self.coord_func
        return TransformFactory("MapImage", **functions)

    _writes = True  # a user's function might do so


class Albumentations(ImageAugmentor):
    """An augmentor of albumentations, version 2, seeded from the flow's generator.

    For images only; points and boxes would need its `Compose(keypoint_params=...)`.
    """

    def __init__(self, augmentor: Any):
        if not callable(getattr(augmentor, "set_random_seed", None)):
            raise TypeError(
                "expected a transform or Compose of albumentations 2, which has set_random_seed; "
                f"received {augmentor!r}"
            )
        self.augmentor = augmentor

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        apply = functools.partial(_augment_seeded, self.augmentor, int(rng.integers(1 << 32)))
        return TransformFactory("Albumentations", apply_image=apply)


def _augment_seeded(augmentor: Any, seed: int, img: np.ndarray) -> np.ndarray:
    augmentor.set_random_seed(seed)
    return augmentor(image=img)["image"]


class IAAugmentor(ImageAugmentor):
    """An augmentor of the library imgaug, seeded from the flow's generator.

    The last release of imgaug, 0.4.0, cannot be imported with numpy 2, which towerpack needs: this
    is for corrected copies of it.
    """

    def __init__(self, augmentor: Any):
        if not callable(getattr(augmentor, "to_deterministic", None)):
            raise TypeError(
                f"expected an augmenter of imgaug, with to_deterministic, received {augmentor!r}"
            )
        self.augmentor = augmentor

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        # A copy that repeats its numbers, starting from this seed.
        fixed = self.augmentor.to_deterministic()
        fixed.seed_(int(rng.integers(1 << 31)), deterministic_too=True)
        return TransformFactory(
            "IAAugmentor",
            apply_image=fixed.augment_image,
            apply_coords=functools.partial(_augment_points, fixed, img.shape),
        )


def _augment_points(augmentor: Any, shape: tuple[int, ...], coords: np.ndarray) -> np.ndarray:
    ia = require("imgaug", extra="image")
    points = [ia.Keypoint(x=float(x), y=float(y)) for x, y in as_coords(coords)]
    moved = augmentor.augment_keypoints(ia.KeypointsOnImage(points, shape=shape))
    return np.array([[p.x, p.y] for p in moved.keypoints], np.float64).reshape(-1, 2)
