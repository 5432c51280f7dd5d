"""Batches of sequences of similar length."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.base import DataFlow, Pass
from towerpack.dataflow.batch import checked_batch_size
from towerpack.dataflow.grouping import GroupingStage
from towerpack.dataflow.map_component import component
from towerpack.dataflow.padding import pad_rows


class BucketBatchData(GroupingStage):
    """Batches of sequences of similar length, padded to the longest of the batch.

    `boundaries` divide the lengths: a sequence of length n goes into the first bucket whose
    boundary is at least n, and a last bucket takes the longer ones. `batch_size` is one number, or
    a list with one for each bucket (one more than the boundaries), larger for the short ones. Every
    datapoint comes once; at the end of a pass the incomplete buckets come too, unless
    `remainder=False`.

    `length` tells how long a datapoint is: the component whose first axis counts (position or key),
    or a function. Components of different shapes are padded at the end of each axis with
    `pad_value`, one for all or a dict by component; a component that is a plain list of numbers is
    taken as an array. To have the lengths in the batch, add them as a component in a MapData.

    >>> flow = BucketBatchData([[[1, 2]], [[3]], [[4, 5, 6]]], 2, boundaries=[2])
    >>> [batch[0].tolist() for batch in flow]
    [[[1, 2], [3, 0]], [[4, 5, 6]]]
    """

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        batch_size: int | Sequence[int],
        boundaries: Sequence[int],
        *,
        length: int | str | Callable[[Any], int] = 0,
        pad_value: Any = 0,
        remainder: bool = True,
    ):
        super().__init__(ds)
        self.boundaries = [int(boundary) for boundary in boundaries]
        if sorted(set(self.boundaries)) != self.boundaries:
            raise ValueError(f"expected boundaries that grow, received {self.boundaries}")
        buckets = len(self.boundaries) + 1
        sizes = [batch_size] * buckets if isinstance(batch_size, int) else list(batch_size)
        if len(sizes) != buckets:
            raise ValueError(
                f"expected {buckets} batch sizes, one more than the boundaries, received "
                f"{len(sizes)}"
            )
        self.batch_sizes = [checked_batch_size(size) for size in sizes]
        self.length, self.pad_value, self.remainder = length, pad_value, remainder

    def group_of(self, datapoint: Any) -> Hashable:
        if callable(self.length):
            length = self.length(datapoint)
        else:
            length = len(component(datapoint, self.length))
        return int(np.searchsorted(self.boundaries, length, side="left"))

    def group_size(self, group: Any) -> int:
        return self.batch_sizes[group]

    def assemble(self, rows: list[Any], numbers: list[int], group: Any, pass_: Pass) -> Any:
        return pad_rows(rows, self.pad_value, pass_.allocate, numbers)
