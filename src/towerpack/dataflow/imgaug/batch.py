"""Augmentation of whole batches, N x H x W[ x C], in a few numpy operations.

These are functions with a parameter `rng`. Use them in a `MapData` or a `MapDataComponent` after
`BatchData`, which passes them a generator fixed by (seed, epoch, number of the batch).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from towerpack.dataflow.imgaug.base import expect
from towerpack.dataflow.imgaug.normalize import Normalize
from towerpack.dataflow.imgaug.pixels import checked_batch, shape2d


@dataclass(eq=False)
class BatchPadCropFlip:
    """Pads every image of a batch, takes a random part, flips some, and normalizes all.

    This is the usual augmentation for CIFAR, several times as fast as image by image. `pad` is the
    width of the black border on each side, and `crop` the (height, width) of the part, by default
    the images' size. With `mean` and `std` the result is float32, otherwise it keeps the images'
    dtype.

    >>> from towerpack.dataflow import BatchData, DataFromArrays, MapDataComponent
    >>> images = np.zeros((8, 32, 32, 3), np.uint8)
    >>> flow = BatchData(DataFromArrays(images), 4)
    >>> flow = MapDataComponent(flow, BatchPadCropFlip(mean=120, std=60), index=0)
    >>> flow[0][0].shape, flow[0][0].dtype
    ((4, 32, 32, 3), dtype('float32'))
    """

    pad: int = 4
    crop: int | Sequence[int] | None = None
    flip_prob: float = 0.5
    mean: float | Sequence[float] | None = None
    std: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        expect(0 <= self.flip_prob <= 1, "a probability from 0 to 1", self.flip_prob)
        expect(self.pad >= 0, "pad >= 0", self.pad)
        given = self.mean, self.std
        expect((self.mean is None) == (self.std is None), "both mean and std or neither", given)
        scaled = self.mean is not None and self.std is not None
        self._normalize = Normalize(self.mean, self.std) if scaled else None  # type: ignore[arg-type]
        self._crop = None if self.crop is None else shape2d(self.crop)

    def __call__(self, images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        images = checked_batch(images)
        count, height, width = images.shape[:3]
        crop = self._crop or (height, width)
        rows, columns = height + 2 * self.pad - crop[0], width + 2 * self.pad - crop[1]
        if rows < 0 or columns < 0:
            raise ValueError(
                f"expected images of at least {crop} with a border of {self.pad} pixels, received "
                f"{(height, width)}"
            )
        y = rng.integers(rows + 1, size=count)
        x = rng.integers(columns + 1, size=count)
        flip = np.less(rng.random(count), self.flip_prob)
        # In rows of (width * channels) values, a part is contiguous and fast to copy.
        inner = images.reshape(count, height, width, -1)
        pad, channels = self.pad, inner.shape[3]
        padded = np.zeros((count, height + 2 * pad, width + 2 * pad, channels), images.dtype)
        padded[:, pad : pad + height, pad : pad + width] = inner
        # Flipped before the crop, whose offset is then counted from the other side.
        padded[flip] = padded[flip, :, ::-1]
        x = np.where(flip, columns - x, x)
        lines = padded.reshape(*padded.shape[:2], -1)
        windows = sliding_window_view(lines, (crop[0], crop[1] * channels), axis=(1, 2))
        parts = windows[np.arange(count), y, x * channels].reshape(count, *crop, *images.shape[3:])
        if self._normalize is None:
            return parts
        # As one tall image, in which each row is a row of one of the images.
        tall = parts.reshape(-1, *parts.shape[2:])
        return self._normalize.scaling(tall).reshape(parts.shape)


@dataclass(eq=False)
class MixUp:
    """Mixes every image of a batch with another, and their labels in the same proportion.

    After Zhang et al. 2018: one weight for each pair, from Beta(alpha, alpha). Datapoints are
    `[images, labels, ...]` or dicts, with the components `image` and `label`. Labels are class
    numbers, one-hot or soft; they become N x num_classes float32. Images become float32.

    >>> from towerpack.dataflow import MapData
    >>> batch = [np.zeros((2, 8, 8, 3), np.uint8), np.array([0, 4])]
    >>> images, labels = MapData([batch], MixUp(num_classes=5))[0]
    >>> labels.shape, labels.sum(axis=1).tolist()
    ((2, 5), [1.0, 1.0])
    """

    alpha: float = 0.2
    num_classes: int | None = None
    prob: float = 1.0
    image: int | str = 0
    label: int | str = 1

    def __post_init__(self) -> None:
        expect(0 <= self.prob <= 1, "a probability from 0 to 1", self.prob)
        expect(self.alpha > 0, "alpha > 0", self.alpha)

    def __call__(self, datapoint: Any, rng: np.random.Generator) -> Any:
        datapoint = list(datapoint) if isinstance(datapoint, tuple) else datapoint
        images = checked_batch(datapoint[self.image])
        labels = soft_labels(datapoint[self.label], self.num_classes)
        if rng.random() < self.prob:
            images, weights, partner = self._mix(images, rng)
            weights = weights[:, None].astype(np.float32)
            labels = labels * weights + labels[partner] * (1 - weights)
        else:
            images = self._unmixed(images)
        datapoint[self.image], datapoint[self.label] = images, labels
        return datapoint

    def _mix(
        self, images: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The mixed images, the weight of each first image, and the number of its partner."""
        count = len(images)
        weights = rng.beta(self.alpha, self.alpha, count)
        partner = rng.permutation(count)
        shaped = weights.astype(np.float32).reshape(-1, *[1] * (images.ndim - 1))
        mixed = images * shaped
        mixed += images[partner] * (1 - shaped)
        return mixed, weights, partner

    def _unmixed(self, images: np.ndarray) -> np.ndarray:
        return images.astype(np.float32, copy=False)


@dataclass(eq=False)
class CutMix(MixUp):
    """Puts a rectangle of another image into every image of a batch, and mixes labels by area.

    After Yun et al. 2019. Everything else is as in `MixUp`, except that images keep their dtype and
    `alpha` is 1 by default.
    """

    alpha: float = 1.0

    def _mix(
        self, images: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        count, height, width = images.shape[:3]
        side = np.sqrt(1 - rng.beta(self.alpha, self.alpha, count))
        y, x = rng.random(count) * height, rng.random(count) * width
        # The rectangle surrounds a point anywhere in the image, and is clipped to the image.
        top, bottom = (np.clip(y + s * side * height / 2, 0, height).astype(int) for s in (-1, 1))
        left, right = (np.clip(x + s * side * width / 2, 0, width).astype(int) for s in (-1, 1))
        partner = rng.permutation(count)
        mixed = images.copy()
        for i, j in enumerate(partner):
            where = slice(top[i], bottom[i]), slice(left[i], right[i])
            mixed[i][where] = images[j][where]
        weights = 1 - (bottom - top) * (right - left) / (height * width)
        return mixed, weights, partner

    def _unmixed(self, images: np.ndarray) -> np.ndarray:
        return images


def soft_labels(labels: Any, num_classes: int | None) -> np.ndarray:
    """N x num_classes float32, from class numbers, or from labels that are one-hot or soft."""
    labels = np.asarray(labels)
    if labels.ndim == 2:
        return labels.astype(np.float32, copy=False)
    if num_classes is None or labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise ValueError(
            "expected labels as N x classes, or as N integers with num_classes given; received "
            f"{labels.dtype} of shape {labels.shape}, num_classes={num_classes}"
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise ValueError(
            f"expected labels from 0 to {num_classes - 1}, received {labels.min()} to "
            f"{labels.max()}"
        )
    return np.eye(num_classes, dtype=np.float32)[labels]
