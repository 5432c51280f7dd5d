"""One of several parts of a flow, for one of several machines or processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from towerpack.dataflow.base import (
    DataFlow,
    FlowIterator,
    IndexIterator,
    Pass,
    State,
)
from towerpack.dataflow.reindex import Reindexed


class ShardData(Reindexed):
    """Every `num_shards`-th datapoint, beginning with number `shard` (from 0).

    The shards of one flow have no datapoint in common and together are all of it; their lengths
    differ by at most one. Ordered; random access is kept, and then the others are not even read.
    There it counts indices: where a function below drops datapoints, lengths may differ by more.
    Shards of a shuffled source agree if its seed is the same everywhere.

    >>> list(ShardData(range(7), num_shards=3, shard=1))
    [1, 4]
    """

    def __init__(self, ds: DataFlow | Iterable[Any], num_shards: int, shard: int):
        super().__init__(ds)
        if num_shards < 1 or not 0 <= shard < num_shards:
            raise ValueError(
                f"expected 0 <= shard < num_shards, received shard {shard} of {num_shards}"
            )
        self.num_shards, self.shard = int(num_shards), int(shard)

    def require_random_access(self) -> None:
        pass  # it is kept where there is one

    def __len__(self) -> int:
        return self._share(len(self.ds))

    def span(self) -> int:
        return self._share(self.ds.span())

    def _share(self, size: int) -> int:
        return len(range(self.shard, size, self.num_shards))

    def sources(self, indices: Any, pass_: Pass) -> Any:
        return indices * self.num_shards + self.shard

    def iterator(self, pass_: Pass) -> FlowIterator:
        return IndexIterator(self, pass_) if self.walks_indices else _Shard(self, pass_)


class _Shard(FlowIterator):
    def __init__(self, flow: ShardData, pass_: Pass):
        self._flow = flow
        self._input, self._drawn = flow.ds.iterator(pass_), 0

    def __next__(self) -> Any:
        while True:
            datapoint = next(self._input)
            mine = self._drawn % self._flow.num_shards == self._flow.shard
            self._drawn += 1
            if mine:
                return datapoint

    def state(self) -> State:
        return {"input": self._input.state(), "drawn": self._drawn}

    def restore(self, state: State) -> None:
        self._input.restore(state["input"])
        self._drawn = state["drawn"]

    def close(self) -> None:
        self._input.close()
