"""Augmentors made of others: apply perhaps, choose, reorder; and of a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from towerpack.dataflow.imgaug.base import ImageAugmentor, checked_augmentor
from towerpack.dataflow.imgaug.transform import (
    NO_OP,
    Transform,
    TransformFactory,
    TransformList,
)


@dataclass(eq=False, repr=False)
class Identity(ImageAugmentor):
    """Changes nothing."""

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return NO_OP


@dataclass(eq=False, repr=False)
class RandomApplyAug(ImageAugmentor):
    """Applies `aug` with probability `prob`, and otherwise nothing."""

    aug: ImageAugmentor
    prob: float

    def __post_init__(self) -> None:
        checked_augmentor(self.aug)
        checked_probability(self.prob)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return self.aug.draw(img, rng) if rng.random() < self.prob else NO_OP

    @property
    def writes_in_place(self) -> bool:
        return self.aug.writes_in_place


class RandomChooseAug(ImageAugmentor):
    """Applies one of several augmentors, all as likely, or each given as (augmentor, weight).

    >>> from towerpack.dataflow.imgaug import Flip, Transpose
    >>> choose = RandomChooseAug([(Flip(horiz=True), 3), (Transpose(), 1)])
    """

    def __init__(
        self, augmentors: Sequence[ImageAugmentor] | Sequence[tuple[ImageAugmentor, float]]
    ):
        self.augmentors = list(augmentors)
        if not self.augmentors:
            raise ValueError("expected at least one augmentor to choose from")
        pairs = [a if isinstance(a, tuple) else (a, 1.0) for a in self.augmentors]
        self._choices = [checked_augmentor(augmentor) for augmentor, _ in pairs]
        weights = np.array([weight for _, weight in pairs], np.float64)
        if (weights < 0).any() or not weights.sum() > 0:
            raise ValueError(f"expected weights that are not negative, received {weights.tolist()}")
        self._ends = np.cumsum(weights / weights.sum())

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        chosen = int(np.searchsorted(self._ends, rng.random(), side="right"))
        return self._choices[min(chosen, len(self._choices) - 1)].draw(img, rng)

    @property
    def writes_in_place(self) -> bool:
        return any(augmentor.writes_in_place for augmentor in self._choices)


class RandomOrderAug(ImageAugmentor):
    """Applies all of several augmentors, in a random order.

    Each draws for the original image, so they must not change the image's size.
    """

    def __init__(self, augmentors: Sequence[ImageAugmentor]):
        self.augmentors = [checked_augmentor(augmentor) for augmentor in augmentors]

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        drawn = [augmentor.draw(img, rng) for augmentor in self.augmentors]
        return TransformList([drawn[i] for i in rng.permutation(len(drawn))])

    @property
    def writes_in_place(self) -> bool:
        return any(augmentor.writes_in_place for augmentor in self.augmentors)


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

    @property
    def writes_in_place(self) -> bool:
        return True  # a function of the user might


def checked_probability(prob: float) -> None:
    if not 0 <= prob <= 1:
        raise ValueError(f"expected a probability from 0 to 1, received {prob!r}")
