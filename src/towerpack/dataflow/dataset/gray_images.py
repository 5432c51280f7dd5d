"""Small gray images with labels, held as bytes and served as floats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.base import Pass
from towerpack.dataflow.shuffled_source import ShuffledSource

_SCALE = np.float32(1 / 255)


class GrayImages(ShuffledSource):
    """Datapoints `[image, label]`: float32 pixels from 0 to 1, and an int32 label.

    Random access; every image once per pass, in an order of (seed, epoch) when shuffled. The images
    stay bytes in memory, a quarter of what the floats would take, and are scaled as they are read:
    a whole batch at once under `BatchData`.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, shuffle: bool, seed: int = 0):
        super().__init__(shuffle, seed)
        self.images, self.labels = images, labels.astype(np.int32)

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, row: int) -> Any:
        return [self.images[row] * _SCALE, self.labels[row]]

    def read_rows(self, rows: np.ndarray) -> list[Any]:
        images = self.images[rows] * _SCALE
        return [[image, label] for image, label in zip(images, self.labels[rows], strict=True)]

    def gather(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> Any:
        rows = self.rows(indices, pass_)
        images = pass_.allocate((len(rows), *self.images.shape[1:]), np.dtype(np.float32))
        labels = pass_.allocate((len(rows),), self.labels.dtype)
        np.multiply(self.images[rows], _SCALE, out=images)
        return [images, np.take(self.labels, rows, out=labels, mode="clip")]
