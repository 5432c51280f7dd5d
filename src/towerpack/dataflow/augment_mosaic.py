"""Datapoints whose image is a mosaic of four."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.augment_image import BoxComponent
from towerpack.dataflow.base import DataFlow, Pass, RandomStage, Stage
from towerpack.dataflow.blame import blame
from towerpack.dataflow.imgaug.mosaic import TILES, Mosaic
from towerpack.dataflow.map_component import component

TRIES = 100  # to find partners that the input does not drop


class MosaicData(RandomStage, Stage):
    """Replaces every image by a mosaic of it and of three others, drawn from the whole input.

    Ordered, every datapoint once as the first of a mosaic. Needs an input with random access, and
    keeps it. What is drawn is fixed by (seed, epoch, index). `mosaic` is a `imgaug.Mosaic` or the
    (height, width) of one; `index` is the image's component; the boxes of `boxes`, a
    `BoxComponent`, and the rows of its labels are those of all four. Other components are the first
    datapoint's.

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
                "takes images from anywhere in it; build it on DataFromList, LMDBData, CacheData"
            )
        self.mosaic = mosaic if isinstance(mosaic, Mosaic) else Mosaic(mosaic)
        self.index, self.boxes, self.seed = index, boxes, seed

    @property
    def walks_indices(self) -> bool:
        return True  # whatever the input does when it is iterated: here it is asked by index

    def get(self, index: int, pass_: Pass) -> Any:
        first = self.ds.get(index, pass_)
        if first is None:
            return None
        try:
            rng = self.stream(pass_, "mosaic").generator(pass_.epoch, index)
            return self._combined([first, *self._partners(rng, pass_)], rng)
        except Exception as error:
            blame(error, self, index, pass_)
            raise

    def _partners(self, rng: np.random.Generator, pass_: Pass) -> list[Any]:
        found: list[Any] = []
        for index in rng.integers(self.ds.span(), size=TRIES).tolist():
            datapoint = self.ds.get(index, pass_)
            if datapoint is not None:
                found.append(datapoint)
                if len(found) == TILES - 1:
                    return found
        raise ValueError(
            f"the input dropped nearly all of {TRIES} datapoints that were drawn as partners; drop "
            "them in a FilterData and put a CacheData between"
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
