"""The data of the demo.

This is a file of its own, without TensorFlow, because a worker process imports the module of the
function that it runs, and TensorFlow would cost it five seconds and half a gigabyte.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from towerpack.dataflow import BatchData, DataFlow, MapData, MultiProcessRunner
from towerpack.dataflow.dataset import MnistSample

BATCH = 64
MOST_PIXELS = 2


def training_flow(seed: int) -> DataFlow:
    digits = MnistSample("train", shuffle=True, seed=seed)
    batches = BatchData(MapData(digits, shift), BATCH)
    return MultiProcessRunner(batches, num_prefetch=8, num_proc=1)


def validation_flow() -> DataFlow:
    return BatchData(MnistSample("test", shuffle=False), 200, remainder=True)


def all_test_digits() -> tuple[np.ndarray, np.ndarray]:
    """All test images and labels as two arrays."""
    flow = MnistSample("test", shuffle=False)
    images, labels = BatchData(flow, len(flow))[0]
    return images, labels


def shift(datapoint: list[Any], rng: np.random.Generator) -> list[Any]:
    """Moves the digit by up to two pixels; its label does not depend on its place."""
    image, label = datapoint
    height, width = image.shape
    padded = np.pad(image, MOST_PIXELS)
    top, left = rng.integers(0, 2 * MOST_PIXELS, size=2, endpoint=True)
    return [padded[top : top + height, left : left + width], label]
