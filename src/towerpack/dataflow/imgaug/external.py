"""Augmentors of other libraries."""

from __future__ import annotations

from typing import Any

import numpy as np

from towerpack.core.optional import require
from towerpack.dataflow.imgaug.base import ImageAugmentor
from towerpack.dataflow.imgaug.moves import as_coords
from towerpack.dataflow.imgaug.transform import Transform


class Albumentations(ImageAugmentor):
    """An augmentor of albumentations, version 2: its random numbers are seeded from ours.

    Images only; points and boxes would need its `Compose(keypoint_params=...)`.
    """

    def __init__(self, augmentor: Any):
        if not callable(getattr(augmentor, "set_random_seed", None)):
            raise TypeError(
                "expected a transform or Compose of albumentations 2, which has set_random_seed; "
                f"received {augmentor!r}"
            )
        self.augmentor = augmentor

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        return _AlbumentationsTransform(self.augmentor, int(rng.integers(1 << 32)))


class _AlbumentationsTransform(Transform):
    def __init__(self, augmentor: Any, seed: int):
        self.augmentor, self.seed = augmentor, seed

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        self.augmentor.set_random_seed(self.seed)
        return self.augmentor(image=img)["image"]


class IAAugmentor(ImageAugmentor):
    """An augmentor of the library imgaug, seeded from our numbers.

    Its last release, 0.4.0, does not import under numpy 2, which towerpack needs: this is for
    corrected copies of it.
    """

    def __init__(self, augmentor: Any):
        if not callable(getattr(augmentor, "to_deterministic", None)):
            raise TypeError(
                f"expected an augmenter of imgaug, with to_deterministic, received {augmentor!r}"
            )
        self.augmentor = augmentor

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        # A copy that repeats itself, and begins where our seed says.
        fixed = self.augmentor.to_deterministic()
        fixed.seed_(int(rng.integers(1 << 31)), deterministic_too=True)
        return _IAATransform(fixed, img.shape)


class _IAATransform(Transform):
    def __init__(self, augmentor: Any, shape: tuple[int, ...]):
        self.augmentor, self.shape = augmentor, shape

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        return self.augmentor.augment_image(img)

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        ia = require("imgaug", extra="image")
        points = [ia.Keypoint(x=float(x), y=float(y)) for x, y in as_coords(coords)]
        moved = self.augmentor.augment_keypoints(ia.KeypointsOnImage(points, shape=self.shape))
        return np.array([[p.x, p.y] for p in moved.keypoints], np.float64).reshape(-1, 2)
