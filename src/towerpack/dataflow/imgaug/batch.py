"""Augmentation of whole batches, N x H x W[ x C], in a few numpy operations.

These are functions with a parameter `rng`, so they stand in a `MapData` or a `MapDataComponent`
after `BatchData`, which hands them a generator fixed by (seed, epoch, number of the batch).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from towerpack.dataflow.imgaug.normalize import Normalize
from towerpack.dataflow.imgaug.opencv import shape2d
from towerpack.dataflow.imgaug.simple import checked_probability


class BatchPadCropFlip:
    """Pads every image of a batch, takes a random part, flips some, and normalizes all.

    The augmentation of CIFAR and its kin; several times as quick as image by image. `pad` is the
    black border on each side, `crop` the (height, width) of the part, by default the images' size.
    With `mean` and `std` the result is float32, otherwise of the images' dtype.

    >>> from towerpack.dataflow import BatchData, DataFromArrays, MapDataComponent
    >>> images = np.zeros((8, 32, 32, 3), np.uint8)
    >>> flow = BatchData(DataFromArrays(images), 4)
    >>> flow = MapDataComponent(flow, BatchPadCropFlip(mean=120, std=60), index=0)
    >>> flow[0][0].shape, flow[0][0].dtype
    ((4, 32, 32, 3), dtype('float32'))
    """

    def __init__(
        self,
        pad: int = 4,
        crop: int | Sequence[int] | None = None,
        flip_prob: float = 0.5,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
    ):
        checked_probability(flip_prob)
        if pad < 0:
            raise ValueError(f"expected pad >= 0, received {pad}")
        if (mean is None) != (std is None):
            raise ValueError(f"expected both mean and std or neither, received {mean!r}, {std!r}")
        self.pad, self.flip_prob = pad, flip_prob
        self.crop = None if crop is None else shape2d(crop)
        self.normalize = None if mean is None or std is None else Normalize(mean, std)

    def __call__(self, images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        images = checked_batch(images)
        count, height, width = images.shape[:3]
        crop = self.crop or (height, width)
        rows, columns = height + 2 * self.pad - crop[0], width + 2 * self.pad - crop[1]
        if rows < 0 or columns < 0:
            raise ValueError(
                f"expected images of at least {crop} with a border of {self.pad} pixels, received "
                f"{(height, width)}"
            )
        y = rng.integers(rows + 1, size=count)
        x = rng.integers(columns + 1, size=count)
        flip = np.less(rng.random(count), self.flip_prob)
        return self._normalized(self._cropped(images, crop, y, x, flip))

    def _cropped(
        self,
        images: np.ndarray,
        crop: tuple[int, int],
        y: np.ndarray,
        x: np.ndarray,
        flip: np.ndarray,
    ) -> np.ndarray:
        count, height, width, *rest = images.shape
        pad, channels = self.pad, int(np.prod(rest, dtype=int))
        # In rows of (width * channels) values, a part's pixels lie together: quick to copy.
        padded = np.zeros((count, height + 2 * pad, width + 2 * pad, channels), images.dtype)
        inner = images.reshape(count, height, width, channels)
        padded[:, pad : pad + height, pad : pad + width] = inner
        # Flipped before the crop, which then begins on the other side.
        padded[flip] = padded[flip, :, ::-1]
        x = np.where(flip, padded.shape[2] - crop[1] - x, x)
        lines = padded.reshape(count, height + 2 * pad, -1)
        windows = sliding_window_view(lines, (crop[0], crop[1] * channels), axis=(1, 2))
        parts = windows[np.arange(count), y, x * channels]
        return parts.reshape(count, *crop, *rest)

    def _normalized(self, images: np.ndarray) -> np.ndarray:
        if self.normalize is None:
            return images
        # One tall picture: each row is a line of one of the images.
        tall = images.reshape(-1, *images.shape[2:])
        return self.normalize.scaling(tall).reshape(images.shape)


class MixUp:
    """Mixes every image of a batch with another, and their labels alike.

    After Zhang et al. 2018: one weight for each pair, from Beta(alpha, alpha). Datapoints are
    `[images, labels, ...]` or dicts, `image` and `label` say where. Labels are numbers of classes,
    or are one-hot or soft already; they become N x num_classes float32. Images become float32.

    >>> from towerpack.dataflow import MapData
    >>> batch = [np.zeros((2, 8, 8, 3), np.uint8), np.array([0, 4])]
    >>> images, labels = MapData([batch], MixUp(num_classes=5))[0]
    >>> labels.shape, labels.sum(axis=1).tolist()
    ((2, 5), [1.0, 1.0])
    """

    def __init__(
        self,
        alpha: float = 0.2,
        num_classes: int | None = None,
        prob: float = 1.0,
        image: int | str = 0,
        label: int | str = 1,
    ):
        checked_probability(prob)
        if alpha <= 0:
            raise ValueError(f"expected alpha > 0, received {alpha}")
        self.alpha, self.num_classes, self.prob = alpha, num_classes, prob
        self.image, self.label = image, label

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


class CutMix(MixUp):
    """Puts a rectangle of another image into every image of a batch, and mixes labels by area.

    After Yun et al. 2019. As `MixUp` in everything else, but images keep their dtype, and the
    default of `alpha` is 1.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        num_classes: int | None = None,
        prob: float = 1.0,
        image: int | str = 0,
        label: int | str = 1,
    ):
        super().__init__(alpha, num_classes, prob, image, label)

    def _mix(
        self, images: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        count, height, width = images.shape[:3]
        side = np.sqrt(1 - rng.beta(self.alpha, self.alpha, count))
        y, x = rng.random(count) * height, rng.random(count) * width
        # A rectangle around a point anywhere: what sticks out of the image is lost.
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


def checked_batch(images: Any) -> np.ndarray:
    if isinstance(images, np.ndarray) and images.ndim in (3, 4) and images.size:
        return images
    found = f"shape {images.shape}" if isinstance(images, np.ndarray) else type(images).__name__
    raise TypeError(
        f"expected a batch of images, N x H x W[ x C], received {found}; put a BatchData before"
    )


def soft_labels(labels: Any, num_classes: int | None) -> np.ndarray:
    """N x num_classes float32, from numbers of classes or from what is one-hot or soft already."""
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
    hot = np.zeros((len(labels), num_classes), np.float32)
    hot[np.arange(len(labels)), labels] = 1
    return hot
