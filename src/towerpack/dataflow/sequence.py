"""A flow as a Sequence, for libraries that index their data."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.source.iterable import as_flow
from towerpack.dataflow.stacking import DroppedDatapoint


class FlowSequence(Sequence[Any]):
    """One epoch of a flow with random access as a `collections.abc.Sequence`.

    Also a map-style dataset for PyTorch's DataLoader, which asks for whole batches through
    `__getitems__`. `set_epoch` changes to another epoch, with another order and augmentation.

    >>> seen = FlowSequence(range(10, 15))
    >>> len(seen), seen[0], seen[-1], seen[1:3]
    (5, 10, 14, [11, 12])
    """

    def __init__(self, flow: Any, epoch: int = 0):
        self.flow = as_flow(flow)
        if not self.flow.random_access:
            raise TypeError(
                f"{self.flow.label()} has no random access, so it cannot be a Sequence; iterate "
                "over it, or build it on one that has: DataFromArrays, DataFromList, LMDBData, ..."
            )
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = Epoch(epoch)

    def __len__(self) -> int:
        return len(self.flow)

    def __getitem__(self, index: Any) -> Any:
        size = len(self)
        if isinstance(index, slice):
            return self.__getitems__(list(range(*index.indices(size))))
        index = operator.index(index)
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of range for a flow of {size} datapoints")
        return self.__getitems__([index % size])[0]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        rows = self.flow.read(indices, self._epoch)
        for row, index in zip(rows, indices, strict=True):
            if row is None:
                raise DroppedDatapoint(index)
        return rows
