"""Datapoints whose image is a mosaic of four."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.base import DataFlow, Indices
from towerpack.dataflow.epoch import Epoch, RandomStage
from towerpack.dataflow.functions import component, locate_error
from towerpack.dataflow.imgaug.crop_resize import TILES, Mosaic
from towerpack.dataflow.iterators import FlowIterator, IndexIterator
from towerpack.dataflow.stage.augment import BoxComponent
from towerpack.dataflow.stage.base import Stage

TRIES = 100  # draws of an index, to find three datapoints that the input does not drop


class MosaicData(RandomStage, Stage):
    """Replaces every image by a mosaic of it and three others, drawn from the whole input.

    Keeps the order: every datapoint is once the first of a mosaic. It needs an input with random
    access, and keeps it. The random numbers are fixed by (seed, epoch, index). `mosaic` is an
    `imgaug.Mosaic` or the (height, width) of one, and `index` is the component of the image. The
    boxes of `boxes`, a `BoxComponent`, and the rows of its labels are joined from all four images.
    Other components are those of the first datapoint.

    >>> from towerpack.dataflow import BoxComponent, DataFromList
    >>> box = np.array([[0.0, 0.0, 20.0, 20.0]])
    >>> ds = [[np.full((20, 20, 3), i, np.uint8), box, np.array([i])] for i in range(8)]
    >>> flow = MosaicData(ds, (64, 64), boxes=BoxComponent(1, labels=(2,)))
    >>> image, boxes, labels = flow[5]
    >>> image.shape, boxes.shape, labels[0]
    ((64, 64, 3), (4, 4), np.int64(5))
    """

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        mosaic: Mosaic | int | Sequence[int],
        index: int | str = 0,
        boxes: BoxComponent | None = None,
        *,
        seed: int = 0,
    ):
        super().__init__(ds)
        if not self.ds.random_access:
            raise TypeError(
                f"MosaicData expected an input with random access, received {self.ds.label()}: it "
                "takes images from anywhere in it; use DataFromList, LMDBData or CacheData as input"
            )
        self.mosaic = mosaic if isinstance(mosaic, Mosaic) else Mosaic(mosaic)
        self.index, self.boxes, self.seed = index, boxes, seed

    def sequential(self, epoch: Epoch) -> FlowIterator:
        return IndexIterator(self, epoch)

    def apply(self, rows: list[Any], indices: Indices, epoch: Epoch) -> list[Any]:
        return [
            None if row is None else self._mosaic_of(row, int(index), epoch)
            for row, index in zip(rows, indices, strict=True)
        ]

    def _mosaic_of(self, first: Any, index: int, epoch: Epoch) -> Any:
        try:
            rng = self.stream(epoch, "mosaic").generator(epoch.number, index)
            return self._combined([first, *self._partners(rng, epoch)], rng)
        except Exception as error:
            locate_error(error, self, index, epoch)
            raise

    def _partners(self, rng: np.random.Generator, epoch: Epoch) -> list[Any]:
        found: list[Any] = []
        for index in rng.integers(self.ds.num_indices(), size=TRIES).tolist():
            datapoint = self.ds.read([index], epoch)[0]
            if datapoint is not None:
                found.append(datapoint)
                if len(found) == TILES - 1:
                    return found
        raise ValueError(
            f"the input dropped nearly all of {TRIES} datapoints that were drawn for a mosaic; put "
            "a CacheData between the stage that drops and the MosaicData"
        )

    def _combined(self, parts: list[Any], rng: np.random.Generator) -> Any:
        images = [component(part, self.index) for part in parts]
        transform = self.mosaic.draw(images, rng)
        first = parts[0]
        result: Any = dict(first) if isinstance(first, dict) else list(first)
        result[self.index] = transform.apply_images(images)
        if self.boxes is not None:
            given = [component(part, self.boxes.index) for part in parts]
            boxes, kept = transform.filter_boxes(given, self.boxes.min_size, self.boxes.min_visible)
            result[self.boxes.index] = boxes
            for label in self.boxes.labels:
                rows = [
                    np.asarray(component(part, label))[numbers]
                    for part, numbers in zip(parts, kept, strict=True)
                ]
                joined = np.concatenate(rows)
                as_list = not isinstance(component(first, label), np.ndarray)
                result[label] = joined.tolist() if as_list else joined
        return result
