"""What an augmentor is: it draws random numbers and returns a fixed transform.

An augmentor takes all its numbers from the `numpy.random.Generator` that it receives. A flow
passes each datapoint's own generator, which is fixed by (seed, epoch, index), through a whole
chain, in any thread or worker. Augmentors themselves have no state that changes.

Augmentors written for tensorpack derive from the classes in `towerpack.compat.imgaug`.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from towerpack.core.seeds import Stream
from towerpack.dataflow.imgaug.pixels import checked_image
from towerpack.dataflow.imgaug.transform import Transform

_thread = threading.local()  # .rng: the generator of `drawing_from` in this thread

OLD_METHODS = ("get_transform", "_get_augment_params", "_augment", "_augment_coords")


class ImageAugmentor:
    """Draws a transform for an image.

    Images are HWC or HW, of uint8, or of floats in [0, 255]. All randomness is in `draw`; the
    `Transform` that it returns is deterministic. Outside a flow and without a generator, an
    augmentor draws from one of its own, which gives the same numbers in every run.

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
    """Whether `draw` depends only on the image's shape and dtype.

    A chain can then draw before it computes the image, and compute only the part that is kept.
    """

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        cls.draws_from_shape = cls.__dict__.get("draws_from_shape", False)  # not inherited
        for name in OLD_METHODS:
            if name in cls.__dict__ and "draw" not in cls.__dict__:
                raise TypeError(
                    f"{cls.__name__} defines {name}, which pipelines do not call; expected "
                    "draw(self, img, rng). An augmentor written for tensorpack derives from the "
                    "class of the same name in towerpack.compat.imgaug"
                )

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        """The transform for this image: a function of the image and of the numbers drawn."""
        raise NotImplementedError(
            f"expected {type(self).__name__} to have a method draw(self, img, rng) that returns a "
            "Transform"
        )

    def get_transform(self, img: np.ndarray, rng: np.random.Generator | None = None) -> Transform:
        """Draws a transform for this image, from `rng` or from the augmentor's own generator."""
        return self.draw(checked_image(img), self.default_rng() if rng is None else rng)

    def augment(self, img: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """Returns the transformed image; the given one is not written into."""
        img = checked_image(img).copy() if self.writes_in_place else checked_image(img)
        return self.draw(img, self.default_rng() if rng is None else rng).apply_image(img)

    _writes = False

    @property
    def writes_in_place(self) -> bool:
        """Whether the augmentor may write into the image that it receives."""
        return self._writes

    def default_rng(self) -> np.random.Generator:
        """The generator for calls without one: that of `drawing_from`, or the augmentor's own."""
        rng = getattr(_thread, "rng", None) or self.__dict__.get("_own_rng")
        if rng is None:
            rng = self.__dict__["_own_rng"] = own_generator(self)
        return rng

    def __repr__(self) -> str:
        shown = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            value = getattr(self, name, parameter.empty)
            if value is parameter.empty or _same(value, parameter.default):
                continue
            # A function is shown by its name, because its address differs in every run.
            shown.append(f"{name}={getattr(value, '__name__', None) or repr(value)}")
        return f"{type(self).__name__}({', '.join(shown)})"


class PhotometricAugmentor(ImageAugmentor):
    """Base class of augmentors that change colours: points, boxes and masks stay in place."""


def own_generator(augmentor: ImageAugmentor, seed: int = 0) -> np.random.Generator:
    """A generator whose numbers depend on the seed and on the augmentor's repr."""
    name = re.sub(r" at 0x\w+", "", repr(augmentor))  # an address differs in every run
    return Stream(seed, name).generator(0, 0)


@contextlib.contextmanager
def drawing_from(rng: np.random.Generator) -> Iterator[None]:
    """In this thread, augmentors that are called without a generator draw from `rng`."""
    outer, _thread.rng = getattr(_thread, "rng", None), rng
    try:
        yield
    finally:
        _thread.rng = outer


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and not isinstance(value, np.ndarray) and value == default


def checked_augmentor(augmentor: Any) -> ImageAugmentor:
    if isinstance(augmentor, ImageAugmentor):
        return augmentor
    raise TypeError(
        f"expected an ImageAugmentor, received {augmentor!r} ({type(augmentor).__name__}); "
        "imgaug.MapImage(function) makes one from a function of an image"
    )


def expect(holds: object, what: str, received: object) -> None:
    """Raises an error about an argument if the condition does not hold."""
    if not holds:
        raise ValueError(f"expected {what}, received {received}")


def expect_range(bounds: tuple[float, float], name: str) -> None:
    ordered = len(bounds) == 2 and 0 <= bounds[0] <= bounds[1]
    expect(ordered, f"{name} as (low, high) with 0 <= low <= high", bounds)


def expect_positive_range(bounds: tuple[float, float], name: str) -> None:
    expect(0 < bounds[0] <= bounds[1], f"{name} as (low, high) with 0 < low <= high", bounds)
