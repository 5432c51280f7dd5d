"""Batches of datapoints of one shape."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from towerpack.dataflow.base import DataFlow, Pass
from towerpack.dataflow.batch import checked_batch_size
from towerpack.dataflow.grouping import GroupingStage
from towerpack.dataflow.map_component import component
from towerpack.dataflow.stacking import stack_rows


class BatchDataByShape(GroupingStage):
    """Batches of `batch_size` datapoints whose component `idx` has the same shape.

    A batch comes as soon as there are enough of one shape; each datapoint once. At the end of a
    pass, incomplete batches come only with `remainder=True`: rare shapes are left out otherwise.

    >>> flow = BatchDataByShape([["a", np.zeros(2)], ["b", np.zeros(3)], ["c", np.zeros(2)]], 2, 1)
    >>> [batch[0].tolist() for batch in flow]
    [['a', 'c']]
    """

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        batch_size: int,
        idx: int | str,
        *,
        remainder: bool = False,
    ):
        super().__init__(ds)
        self.batch_size, self.idx = checked_batch_size(batch_size), idx
        self.remainder = remainder

    def group_of(self, datapoint: Any) -> Hashable:
        return np.shape(component(datapoint, self.idx))

    def group_size(self, group: Any) -> int:
        return self.batch_size

    def assemble(self, rows: list[Any], numbers: list[int], group: Any, pass_: Pass) -> Any:
        return stack_rows(rows, pass_.allocate, numbers)
