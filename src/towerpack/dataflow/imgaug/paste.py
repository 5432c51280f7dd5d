"""Images on a larger background."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from towerpack.dataflow.imgaug.base import ImageAugmentor
from towerpack.dataflow.imgaug.moves import PasteTransform
from towerpack.dataflow.imgaug.opencv import Colour, shape2d, size_of
from towerpack.dataflow.imgaug.transform import Transform


class BackgroundFiller:
    """Makes a background; `fill` is for subclasses to write."""

    def fill(self, background_shape: tuple[int, int], img: np.ndarray) -> np.ndarray:
        """A new array of that height and width, of the channels and dtype of `img`."""
        raise NotImplementedError(f"{type(self).__name__} has no fill(background_shape, img)")


class ConstantBackgroundFiller(BackgroundFiller):
    """A background of one value or colour."""

    def __init__(self, value: Colour):
        self.value = value

    def fill(self, background_shape: tuple[int, int], img: np.ndarray) -> np.ndarray:
        background = np.empty((*background_shape, *img.shape[2:]), img.dtype)
        background[...] = self.value
        return background

    def __repr__(self) -> str:
        return f"ConstantBackgroundFiller({self.value!r})"


class CenterPaste(ImageAugmentor):
    """Puts the image in the middle of a background of (height, width)."""

    def __init__(
        self,
        background_shape: int | Sequence[int],
        background_filler: BackgroundFiller | None = None,
    ):
        self.background_shape = shape2d(background_shape)
        self.background_filler = background_filler or ConstantBackgroundFiller(0)

    def draw(self, img: np.ndarray, rng: np.random.Generator) -> Transform:
        room_y, room_x = self._room(img)
        y0, x0 = self._place(room_y, room_x, rng)
        return PasteTransform(y0, x0, self.background_shape, self.background_filler.fill)

    def _room(self, img: np.ndarray) -> tuple[int, int]:
        (height, width), (rows, columns) = size_of(img), self.background_shape
        if height > rows or width > columns:
            raise ValueError(
                f"{self!r} expected an image of at most {rows}x{columns}, received "
                f"{height}x{width}; put a Resize before it"
            )
        return rows - height, columns - width

    def _place(self, room_y: int, room_x: int, rng: np.random.Generator) -> tuple[int, int]:
        return room_y // 2, room_x // 2


class RandomPaste(CenterPaste):
    """Puts the image anywhere on a background of (height, width)."""

    def _place(self, room_y: int, room_x: int, rng: np.random.Generator) -> tuple[int, int]:
        return int(rng.integers(room_y + 1)), int(rng.integers(room_x + 1))
