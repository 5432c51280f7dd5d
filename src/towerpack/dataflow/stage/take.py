"""Parts of a flow: its first datapoints, or a share for one of several machines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from towerpack.dataflow.base import DataFlow, Indices
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.iterators import FlowIterator, InputIterator
from towerpack.dataflow.stage.base import ApplyIterator, ReorderStage


class TakeData(ReorderStage):
    """The first `size` datapoints of each epoch, or all if there are fewer.

    Ordered, each once; random access is kept.

    >>> list(TakeData([5, 6, 7], 2))
    [5, 6]
    """

    keeps_rows = True
    counts_datapoints = True
    needs_random_access = False

    def __init__(self, ds: DataFlow | Iterable[Any], size: int):
        super().__init__(ds)
        if size < 0:
            raise ValueError(f"expected a size of 0 or more, received {size}")
        self._size = int(size)

    def __len__(self) -> int:
        return min(self._size, len(self.ds))

    def num_indices(self) -> int:
        return min(self._size, self.ds.num_indices())

    def order(self, indices: Any, epoch: Epoch) -> Any:
        return indices

    def sequential(self, epoch: Epoch) -> FlowIterator:
        return _First(self, epoch)


class _First(InputIterator):
    def __init__(self, flow: TakeData, epoch: Epoch):
        super().__init__(flow.ds.open(epoch), "left")
        self.count = flow._size

    def draw(self) -> Any:
        if self.count <= 0:
            raise StopIteration
        datapoint = next(self.input)
        self.count -= 1
        return datapoint

    def close(self) -> None:
        super().close()
        self.count = 0


class ShardData(ReorderStage):
    """Every `num_shards`-th datapoint, beginning with number `shard` (from 0).

    The shards of one flow have no datapoint in common and together are all of it; their lengths
    differ by at most one. Ordered; random access is kept, and then the other datapoints are not
    read. In that case indices are counted: if a function below drops datapoints, lengths may differ
    by more. Shards of a shuffled source fit together if its seed is the same everywhere.

    >>> list(ShardData(range(7), num_shards=3, shard=1))
    [1, 4]
    """

    keeps_rows = True
    needs_random_access = False

    def __init__(self, ds: DataFlow | Iterable[Any], num_shards: int, shard: int):
        super().__init__(ds)
        if num_shards < 1 or not 0 <= shard < num_shards:
            raise ValueError(
                f"expected 0 <= shard < num_shards, received shard {shard} of {num_shards}"
            )
        self.num_shards, self.shard = int(num_shards), int(shard)

    def __len__(self) -> int:
        return self._share(len(self.ds))

    def num_indices(self) -> int:
        return self._share(self.ds.num_indices())

    def _share(self, size: int) -> int:
        return len(range(self.shard, size, self.num_shards))

    def order(self, indices: Any, epoch: Epoch) -> Any:
        return indices * self.num_shards + self.shard

    def apply(self, rows: list[Any], indices: Indices, epoch: Epoch) -> list[Any]:
        """Of the input's datapoints those of the shard, for inputs without random access."""
        return [
            row if index % self.num_shards == self.shard else None
            for row, index in zip(rows, indices, strict=True)
        ]

    def sequential(self, epoch: Epoch) -> FlowIterator:
        return ApplyIterator(self, epoch, key="drawn")
