"""Base of stages that only say which datapoint of the input comes when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.base import DataFlow, FlowIterator, IndexIterator, Pass, Stage
from towerpack.dataflow.statistics import walk


class Reindexed(Stage):
    """A stage whose datapoints are those of the input, which has random access, at other indices.

    Subclasses implement `sources` and `span`. Batches stay whole batches of the input.
    """

    def __init__(self, ds: DataFlow | Iterable[Any]):
        super().__init__(ds)
        self.require_random_access()

    def require_random_access(self) -> None:
        if not self.ds.random_access:
            raise TypeError(
                f"{type(self).__name__} needs an input with random access, but "
                f"{self.ds.label()} has none; build it on DataFromArrays, DataFromList, LMDBData "
                "or another source that has, or use LocallyShuffleData or CacheData"
            )

    def sources(self, indices: Any, pass_: Pass) -> Any:
        """The input's index for an index of this flow, or an array of them for an array."""
        raise NotImplementedError

    def span(self) -> int:
        raise NotImplementedError

    def __len__(self) -> int:
        if self.ds.span() != len(self.ds):  # len raises if it is not known which are dropped
            raise TypeError(f"{self.label()} has no len(): its input drops datapoints")
        return self.span()

    def iterator(self, pass_: Pass) -> FlowIterator:
        return IndexIterator(self, pass_)

    def get(self, index: int, pass_: Pass) -> Any:
        return self.ds.get(int(self.sources(index, pass_)), pass_)

    def get_rows(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> list[Any]:
        return self.ds.get_rows(self.sources(np.asarray(indices), pass_), pass_)

    def gather(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> Any:
        return self.ds.gather(self.sources(np.asarray(indices), pass_), pass_)


def require_fixed_order(stage: DataFlow, ds: DataFlow, what: str) -> None:
    """Refuses an input in which an index means another datapoint in another epoch."""
    for below in walk(ds):
        if below.reorders:
            raise ValueError(
                f"{type(stage).__name__} knows {what} by index, but {below.label()} below it gives "
                "an index another datapoint each epoch; pass it shuffle=False: "
                f"{type(stage).__name__} shuffles by itself"
            )
