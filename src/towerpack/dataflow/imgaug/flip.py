"""Mirrored images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from towerpack.dataflow.imgaug.base import ImageAugmentor
from towerpack.dataflow.imgaug.moves import FlipTransform, TransposeTransform
from towerpack.dataflow.imgaug.opencv import size_of
from towerpack.dataflow.imgaug.simple import checked_probability
from towerpack.dataflow.imgaug.transform import NO_OP, Transform


@dataclass(eq=False, repr=False)
class Flip(ImageAugmentor):
    """Exchanges left and right (`horiz`) or top and bottom (`vert`) with probability `prob`.

    Exactly one of the two; for both, use two.
    """

    draws_from_shape: ClassVar[bool] = True

    horiz: bool = False
    vert: bool = False
    prob: float = 0.5

    def __post_init__(self) -> None:
        if bool(self.horiz) == bool(self.vert):
            raise ValueError(
                f"expected horiz=True or vert=True, received horiz={self.horiz}, vert={self.vert}; "
                "for both directions, use two Flips"
            )
        checked_probability(self.prob)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        if rng.random() < self.prob:
            return FlipTransform(*size_of(img), horiz=self.horiz)
        return NO_OP


@dataclass(eq=False, repr=False)
class Transpose(ImageAugmentor):
    """Makes rows of columns with probability `prob`."""

    draws_from_shape: ClassVar[bool] = True

    prob: float = 0.5

    def __post_init__(self) -> None:
        checked_probability(self.prob)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        if rng.random() < self.prob:
            return TransposeTransform(*size_of(img))
        return NO_OP
