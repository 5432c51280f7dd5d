"""Datapoints drawn with given weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.base import DataFlow, Pass, RandomStage
from towerpack.dataflow.epoch_cache import EpochCache
from towerpack.dataflow.reindex import Reindexed, require_fixed_order


class WeightedChooseData(RandomStage, Reindexed):
    """Draws `size` datapoints per pass, each with a probability in proportion to its weight.

    With replacement: one may come several times in a pass, another not at all. The draws are fixed
    by (seed, epoch). The input needs random access, which is kept, and an order of its own that
    does not change (`shuffle=False`). `size` is the input's length unless given. To balance classes
    exactly, take `BalancedData`. Put random augmentation after this stage: below it, repeated
    datapoints are augmented alike.

    >>> set(WeightedChooseData(["a", "b", "c"], weights=[0, 1, 1]))  <= {"b", "c"}
    True
    """

    reorders = True

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        weights: Sequence[float] | np.ndarray,
        size: int | None = None,
        *,
        seed: int = 0,
    ):
        super().__init__(ds)
        require_fixed_order(self, self.ds, "the weights")
        self.weights = np.asarray(weights, np.float64)
        if self.weights.shape != (self.ds.span(),):
            raise ValueError(
                f"expected {self.ds.span()} weights, one for each datapoint, received an array of "
                f"shape {self.weights.shape}"
            )
        total = self.weights.sum()
        if not np.isfinite(total) or total <= 0 or (self.weights < 0).any():
            raise ValueError("expected weights of 0 or more, finite and not all 0")
        self._size = self.ds.span() if size is None else int(size)
        self.seed = seed
        self._draws: EpochCache[np.ndarray] = EpochCache()

    def span(self) -> int:
        return self._size

    def sources(self, indices: Any, pass_: Pass) -> Any:
        def draw() -> np.ndarray:
            rng = self.stream(pass_, "weighted").generator(pass_.epoch, 0)
            return rng.choice(len(self.weights), self._size, p=self.weights / self.weights.sum())

        return self._draws.get((pass_.epoch, pass_.branch, self.seed), draw)[indices]
