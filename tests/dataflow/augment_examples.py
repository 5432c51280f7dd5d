"""Examples of the flows that augment images, for the laws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.dataflow.laws import Example
from towerpack import dataflow as df
from towerpack.dataflow import imgaug

AUGMENTORS = [imgaug.Rotation(20.0), imgaug.RandomCrop((8, 9)), imgaug.Brightness(30)]


def datapoints(count: int = 9) -> list[Any]:
    """[image, points, boxes, labels, mask]; the same each time."""
    rng = np.random.default_rng(5)
    return [
        [
            rng.integers(0, 256, (12, 14, 3), np.uint8),
            rng.uniform(0, 12, (3, 2)),
            np.array([[1.0, 1.0, 6.0, 7.0], [11.0, 0.0, 12.0, 1.0]]),
            np.array([i, -1]),
            rng.integers(0, 5, (12, 14), np.int32),
        ]
        for i in range(count)
    ]


class OnlyIterated(df.DataFlow):
    def __iter__(self) -> Iterator[Any]:
        yield from datapoints()


def too_small(datapoint: Any) -> Any:
    """Makes an image on which the augmentors fail."""
    if datapoint[3][0] in (2, 3):
        datapoint[0] = datapoint[0][:5, :5]
    return datapoint


def whole() -> df.DataFlow:
    boxes = df.BoxComponent(2, labels=(3,), min_visible=0.5)
    return df.AugmentImageComponents(
        datapoints(), AUGMENTORS, (0,), (1,), mask_index=(4,), boxes=boxes
    )


AUGMENT_EXAMPLES = [
    Example(
        "augment image",
        lambda: df.AugmentImageComponent(datapoints(), AUGMENTORS),
        df.AugmentImageComponent,
        random=True,
    ),
    Example(
        "augment image, iterated",
        lambda: df.AugmentImageComponent(OnlyIterated(), AUGMENTORS),
        df.AugmentImageComponent,
        random=True,
    ),
    Example(
        "augment image, some fail",
        lambda: df.AugmentImageComponent(
            df.MapData(datapoints(), too_small), AUGMENTORS, catch_exceptions=True
        ),
        df.AugmentImageComponent,
        random=True,
    ),
    Example(
        "augment coordinates",
        lambda: df.AugmentImageCoordinates(datapoints(), AUGMENTORS),
        df.AugmentImageCoordinates,
        random=True,
    ),
    Example("augment everything", whole, df.AugmentImageComponents, random=True),
    Example(
        "mosaic",
        lambda: df.MosaicData(datapoints(), (16, 20), boxes=df.BoxComponent(2, labels=(3,))),
        df.MosaicData,
        random=True,
    ),
    Example(
        "mosaic over what drops",
        lambda: df.MosaicData(df.FilterData(datapoints(), lambda dp: dp[3][0] != 4), 16),
        df.MosaicData,
        random=True,
    ),
]
