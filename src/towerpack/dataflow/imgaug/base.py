"""What an augmentor is: it draws, and gives a fixed transform.

**Randomness.** An augmentor implements `draw(img, rng) -> Transform` and takes all its numbers from
the `numpy.random.Generator` that it is given. So a flow can hand each datapoint's own generator,
fixed by (seed, epoch, index), through a whole chain, from any thread or worker, and an augmentor
has nothing in it that changes.

Two older ways to write one work too, and draw from `self.rng`, which is a RandomState over the same
generator for as long as they draw:

- `get_transform(self, img)`, without a generator;
- `_get_augment_params(self, img)`, `_augment(self, img, params)` and
  `_augment_coords(self, coords, params)`.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from towerpack.core.seeds import Stream
from towerpack.dataflow.imgaug.opencv import checked_image
from towerpack.dataflow.imgaug.transform import Transform, TransformList

_lent = threading.local()  # .rng: whose numbers an old augmentor gets while it draws in this thread


class ImageAugmentor:
    """Draws a transform for an image.

    Images are HWC or HW, of uint8, or of floats in [0, 255]. All randomness is in `get_transform`;
    the `Transform` that it returns is deterministic. Outside of a flow and without a generator, an
    augmentor draws from one of its own, whose numbers are the same in every run; give a seed to
    `reset_state` for others.

    To write one, implement `draw`, and take numbers from `rng` alone:

    >>> class Darker(ImageAugmentor):
    ...     def __init__(self, most):
    ...         self.most = most
    ...     def draw(self, img, rng):
    ...         factor = rng.uniform(1 - self.most, 1)
    ...         return TransformFactory(apply_image=lambda x: (x * factor).astype(x.dtype))
    >>> from towerpack.dataflow.imgaug import TransformFactory
    >>> Darker(0.5)
    Darker(most=0.5)
    >>> Darker(0.5).augment(np.full((2, 2), 100, np.uint8)).shape
    (2, 2)
    """

    draws_from_shape: ClassVar[bool] = False
    """Whether `draw` looks at nothing but the image's shape and dtype.

    A chain then need not make the image before it is known which part of it is wanted.
    """

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        own = cls.__dict__
        if "draws_from_shape" not in own:  # a subclass's own draw may look at the pixels
            cls.draws_from_shape = False
        if "draw" not in own and "get_transform" in own:
            cls.draw = _draw_by_get_transform  # type: ignore[method-assign]
        elif "draw" not in own and ("_augment" in own or "_get_augment_params" in own):
            cls.draw = _draw_by_params  # type: ignore[method-assign]

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        """The transform for this image: a function of the image and of the numbers drawn."""
        raise NotImplementedError(
            f"{type(self).__name__} does not say what it draws; expected a method "
            "draw(self, img, rng) that returns a Transform"
        )

    def get_transform(self, img: np.ndarray, rng: np.random.Generator | None = None) -> Transform:
        """Draws a transform for this image, from `rng` or from the augmentor's own generator."""
        checked_image(img)
        for base in type(self).__mro__:
            draw = base.__dict__.get("draw", _draw_by_get_transform)
            if draw is not _draw_by_get_transform:  # else it is `super()` in an older subclass
                return draw(self, img, self._own_rng() if rng is None else rng)
        raise TypeError(f"{type(self).__name__} is no ImageAugmentor")

    def augment(self, img: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """The image, transformed. The given one is not written into."""
        img = checked_image(img).copy() if self.writes_in_place else checked_image(img)
        return self.draw(img, self._own_rng() if rng is None else rng).apply_image(img)

    def reset_state(self, seed: int = 0) -> None:
        """Starts the augmentor's own generator again; flows never use it."""
        # Two different augmentors draw different numbers. The address of an object is no part of
        # what it is.
        name = re.sub(r" at 0x\w+", "", repr(self))
        self.__dict__["_own"] = Stream(seed, name).generator(0, 0)

    @property
    def writes_in_place(self) -> bool:
        """Whether the image may be written into: those written in an older way might."""
        return type(self).draw in (_draw_by_get_transform, _draw_by_params)

    @property
    def rng(self) -> np.random.RandomState:
        """For augmentors written in an older way: where they draw from."""
        return np.random.RandomState(self._own_rng().bit_generator)

    def _own_rng(self) -> np.random.Generator:
        lent = getattr(_lent, "rng", None)
        if lent is not None:
            return lent
        own = self.__dict__.get("_own")
        if own is None:
            self.reset_state()
            own = self.__dict__["_own"]
        return own

    # The oldest protocol, for users and for subclasses.

    def augment_return_params(self, img: np.ndarray) -> tuple[np.ndarray, Transform]:
        transform = self.get_transform(img)
        return transform.apply_image(img), transform

    def augment_with_params(self, img: np.ndarray, params: Transform) -> np.ndarray:
        return params.apply_image(img)

    def augment_coords(self, coords: np.ndarray, params: Transform) -> np.ndarray:
        return params.apply_coords(coords)

    def _get_augment_params(self, img: np.ndarray) -> Any:
        return None

    def _augment(self, img: np.ndarray, params: Any) -> np.ndarray:
        raise NotImplementedError(
            f"{type(self).__name__} says nothing of images; expected a method "
            "draw(self, img, rng) that returns a Transform"
        )

    def _augment_coords(self, coords: np.ndarray, params: Any) -> np.ndarray:
        raise NotImplementedError(
            f"{type(self).__name__} has no _augment_coords; write one, or leave the augmentor out "
            "where there are points or boxes"
        )

    def _init(self, params: dict[str, Any] | None = None) -> None:
        """For `self._init(locals())` in old constructors: keeps the arguments as attributes."""
        for name, value in (params or {}).items():
            if name != "self" and not name.startswith("_"):
                setattr(self, name, value)

    def _rand_range(self, low: float = 1.0, high: float | None = None, size: Any = None) -> Any:
        """For old subclasses: uniform between two numbers, or between 0 and one."""
        if high is None:
            low, high = 0.0, low
        return self.rng.uniform(low, high, size)

    def __repr__(self) -> str:
        shown = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            value = getattr(self, name, parameter.empty)
            if value is parameter.empty or _same(value, parameter.default):
                continue
            # A function by its name: its address would be another in every run.
            shown.append(f"{name}={getattr(value, '__name__', None) or repr(value)}")
        return f"{type(self).__name__}({', '.join(shown)})"


Augmentor = ImageAugmentor


def _draw_by_get_transform(
    self: ImageAugmentor, img: np.ndarray, rng: np.random.Generator
) -> Transform:
    outer, _lent.rng = getattr(_lent, "rng", None), rng
    try:
        return self.get_transform(img)
    finally:
        _lent.rng = outer


def _draw_by_params(self: ImageAugmentor, img: np.ndarray, rng: np.random.Generator) -> Transform:
    outer, _lent.rng = getattr(_lent, "rng", None), rng
    try:
        return ParamsTransform(self, self._get_augment_params(img))
    finally:
        _lent.rng = outer


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and not isinstance(value, np.ndarray) and value == default


class PhotometricAugmentor(ImageAugmentor):
    """Base class of augmentors that change colours: points, boxes and masks stay where they are."""

    def _augment_coords(self, coords: np.ndarray, params: Any) -> np.ndarray:
        return coords


class ParamsTransform(Transform):
    """What an augmentor of the oldest protocol has drawn: its parameters."""

    def __init__(self, augmentor: ImageAugmentor, params: Any):
        self.augmentor, self.params = augmentor, params

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        return self.augmentor._augment(img, self.params)

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        return self.augmentor._augment_coords(coords, self.params)

    def apply_mask(self, mask: np.ndarray) -> np.ndarray:
        if isinstance(self.augmentor, PhotometricAugmentor):
            return mask
        raise self._missing("apply_mask")

    def __repr__(self) -> str:
        return f"ParamsTransform({self.augmentor!r}, {self.params!r})"


class AugmentorList(ImageAugmentor):
    """Augmentors one after another.

    Each draws for the image that the one before it has made, so its transform's parts but the first
    are drawn when an image goes through for the first time: ask for points, boxes or masks after
    the image.

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

    def augment(self, img: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        rng = self._own_rng() if rng is None else rng
        img = checked_image(img).copy() if self._writes else checked_image(img)
        way = _Way(img)
        for augmentor in self.augmentors:
            way.go(way.draw(augmentor, rng))
        return way.end()

    @property
    def writes_in_place(self) -> bool:
        return self._writes

    def __repr__(self) -> str:
        return f"AugmentorList({self.augmentors!r})"


class LazyTransformList(TransformList):
    """Transforms of which all but the first are drawn while the first image goes through."""

    def __init__(
        self, first: Transform, augmentors: Sequence[ImageAugmentor], rng: np.random.Generator
    ):
        # Not flattened: the first may be a list that is not drawn to its end either.
        self._parts = [first]
        self._to_draw = list(augmentors)
        self._rng = rng

    @property
    def transforms(self) -> list[Transform]:
        if self._to_draw:
            raise RuntimeError(
                "this list of augmentors has drawn for its first one only, because each draws for "
                "the image that the one before makes: call apply_image first, then apply_coords, "
                "apply_boxes or apply_mask"
            )
        return self._parts

    @transforms.setter
    def transforms(self, value: list[Transform]) -> None:
        self._parts = value

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        way = _Way(img)
        for transform in self._parts:
            way.go(transform)
        while self._to_draw:
            transform = way.draw(self._to_draw[0], self._rng)
            way.go(transform)
            self._parts.append(transform)
            del self._to_draw[0]
        return way.end()


class _Way:
    """An image on its way through transforms that are drawn as it goes.

    A transform that others can be done at once with is put off until one comes that cannot, or
    that must see the pixels to draw.
    """

    def __init__(self, img: np.ndarray):
        self._img = img
        self._put_off: Transform | None = None

    def draw(self, augmentor: ImageAugmentor, rng: np.random.Generator) -> Transform:
        if self._put_off is None or not augmentor.draws_from_shape:
            return augmentor.draw(self.end(), rng)
        shape = (*self._put_off.output_size, *self._img.shape[2:])  # type: ignore[misc]
        return augmentor.draw(np.broadcast_to(self._img.dtype.type(0), shape), rng)

    def go(self, transform: Transform) -> None:
        if self._put_off is not None:
            both = self._put_off.followed_by(transform)
            if both is not None:
                self._put_off = both
                return
            self.end()
        if transform.can_be_followed:
            self._put_off = transform
        else:
            self._img = transform.apply_image(self._img)

    def end(self) -> np.ndarray:
        """The image as it is now."""
        if self._put_off is not None:
            self._img, self._put_off = self._put_off.apply_image(self._img), None
        return self._img


def checked_augmentor(augmentor: Any) -> ImageAugmentor:
    if isinstance(augmentor, ImageAugmentor):
        return augmentor
    raise TypeError(
        f"expected an ImageAugmentor, received {augmentor!r} ({type(augmentor).__name__}); "
        "a function of an image is one in imgaug.MapImage(function)"
    )


def as_augmentor(augmentors: ImageAugmentor | Iterable[ImageAugmentor]) -> ImageAugmentor:
    """One augmentor of a list of them."""
    if isinstance(augmentors, Iterable) and not isinstance(augmentors, ImageAugmentor):
        return AugmentorList(augmentors)
    return checked_augmentor(augmentors)
