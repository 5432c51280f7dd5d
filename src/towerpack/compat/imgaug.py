"""Augmentors of old scripts: `from towerpack.compat import imgaug` instead of `towerpack.imgaug`.

Every name of `towerpack.imgaug` exists here as well. The augmentor classes also have the methods of
tensorpack's (`augment_return_params`, `augment_with_params`, `augment_coords`, `reset_state`) and
work as base classes of augmentors that are written in one of two older ways:

- `get_transform(self, img)`, without a generator;
- `_get_augment_params(self, img)`, `_augment(self, img, params)` and
  `_augment_coords(self, coords, params)`.

Both draw from `self.rng`, a RandomState over the generator that the flow provides.

>>> class Darker(PhotometricAugmentor):
...     def _get_augment_params(self, img):
...         return self._rand_range(0.5, 1)
...     def _augment(self, img, params):
...         return (img * params).astype(img.dtype)
>>> image, params = Darker().augment_return_params(np.full((2, 2), 100, np.uint8))
>>> bool((image < 100).all())
True
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numpy as np

from towerpack.dataflow import imgaug
from towerpack.dataflow.imgaug.base import drawing_from, own_generator
from towerpack.dataflow.imgaug.pixels import checked_image

ALIASES = ["Augmentor"]
"""Names that `towerpack.imgaug` has no more; they are part of `from towerpack import *`."""


class ImageAugmentor(imgaug.ImageAugmentor):
    """Base class of augmentors with the old methods; also a mixin for new augmentor classes."""

    def __init_subclass__(cls, **kwargs: Any):
        # Does not call the new base class, which refuses old methods.
        cls.draws_from_shape = cls.__dict__.get("draws_from_shape", False)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> imgaug.Transform:
        with drawing_from(rng):
            return self.get_transform(img)

    def get_transform(
        self, img: np.ndarray, rng: np.random.Generator | None = None
    ) -> imgaug.Transform:
        img, rng = checked_image(img), self.default_rng() if rng is None else rng
        if not self._overrides("_augment"):
            return super().draw(img, rng)
        with drawing_from(rng):
            return ParamsTransform(self, self._get_augment_params(img))

    @property
    def writes_in_place(self) -> bool:
        """A method of the script that receives the image may write into it."""
        written_by_script = self._overrides("_augment") or self._overrides("get_transform")
        return written_by_script or super().writes_in_place

    def _overrides(self, method: str) -> bool:
        return getattr(type(self), method) is not getattr(ImageAugmentor, method)

    @property
    def rng(self) -> np.random.RandomState:
        """Draws from the generator that the flow provides, or from the augmentor's own."""
        return np.random.RandomState(self.default_rng().bit_generator)

    def reset_state(self, seed: int = 0) -> None:
        """Restarts the augmentor's own generator; flows never use it."""
        self.__dict__["_own_rng"] = own_generator(self, seed)

    def augment_return_params(self, img: np.ndarray) -> tuple[np.ndarray, imgaug.Transform]:
        transform = self.get_transform(img)
        return transform.apply_image(img), transform

    def augment_with_params(self, img: np.ndarray, params: imgaug.Transform) -> np.ndarray:
        return params.apply_image(img)

    def augment_coords(self, coords: np.ndarray, params: imgaug.Transform) -> np.ndarray:
        return params.apply_coords(coords)

    def _get_augment_params(self, img: np.ndarray) -> Any:
        return None

    def _augment(self, img: np.ndarray, params: Any) -> np.ndarray:
        raise NotImplementedError(f"expected {type(self).__name__} to have _augment(img, params)")

    def _augment_coords(self, coords: np.ndarray, params: Any) -> np.ndarray:
        if isinstance(self, imgaug.PhotometricAugmentor):
            return coords
        raise NotImplementedError(
            f"{type(self).__name__} has no _augment_coords; write one, or leave the augmentor out "
            "of flows with points or boxes"
        )

    def _init(self, params: dict[str, Any] | None = None) -> None:
        """For `self._init(locals())` in constructors: keeps the arguments as attributes."""
        for name, value in (params or {}).items():
            if name != "self" and not name.startswith("_"):
                setattr(self, name, value)

    def _rand_range(self, low: float = 1.0, high: float | None = None, size: Any = None) -> Any:
        """A uniform number between two numbers, or between 0 and one."""
        if high is None:
            low, high = 0.0, low
        return self.rng.uniform(low, high, size)


Augmentor = ImageAugmentor


class PhotometricAugmentor(ImageAugmentor, imgaug.PhotometricAugmentor):
    """Base class of old augmentors that change colours: points and masks stay in place."""


class ParamsTransform(imgaug.Transform):
    """The parameters that an augmentor of the oldest protocol has drawn."""

    def __init__(self, augmentor: ImageAugmentor, params: Any):
        self.augmentor, self.params = augmentor, params

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        return self.augmentor._augment(img, self.params)

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        return self.augmentor._augment_coords(coords, self.params)

    def apply_mask(self, mask: np.ndarray) -> np.ndarray:
        if isinstance(self.augmentor, imgaug.PhotometricAugmentor):
            return mask
        raise self._missing("apply_mask")

    def __repr__(self) -> str:
        return f"ParamsTransform({self.augmentor!r}, {self.params!r})"


@functools.cache
def __getattr__(name: str) -> Any:
    """The name in `towerpack.imgaug`; augmentor classes get the old methods."""
    if name not in imgaug.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(imgaug, name)
    if not inspect.isclass(found) or not issubclass(found, imgaug.ImageAugmentor):
        return found
    # Pickles find the class by its module and name, and so come here again.
    members = {"__module__": __name__, "__doc__": found.__doc__}
    return type(
        name, (ImageAugmentor, found), {**members, "draws_from_shape": found.draws_from_shape}
    )
