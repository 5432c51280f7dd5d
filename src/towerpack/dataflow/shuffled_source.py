"""Sources with random access that can be read in a shuffled order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from towerpack.core import logger
from towerpack.core.seeds import permutation
from towerpack.dataflow.base import DataFlow, Pass
from towerpack.dataflow.epoch_cache import EpochCache
from towerpack.dataflow.statistics import walk

TRAINING_PARTS = ("train", "extra")  # the latter of SVHN


def shuffle_train(name: str, shuffle: bool | None) -> bool:
    """The default of data sets that know their parts: only those to train on are shuffled."""
    return name in TRAINING_PARTS if shuffle is None else shuffle


def log_fixed_order(flow: DataFlow) -> None:
    """Warns that a flow to train on gives its datapoints in the same order in every epoch."""
    stages = walk(flow)
    stored = [stage.label() for stage in stages if isinstance(stage, ShuffledSource)]
    if stored and not any(stage.reorders for stage in stages):
        logger.warning(
            "%s gives its datapoints in the same order in every epoch; pass it shuffle=True to "
            "train on a new order each epoch",
            stored[0],
        )


class ShuffledSource(DataFlow):
    """Base of sources with random access that can be read in a shuffled order.

    By default every source and every reader keeps the order of its data: index i is row i, and two
    sources can be joined. `shuffle=True` gives another order each epoch. Data sets that know which
    of their parts is for training shuffle that one by default.

    The order is a permutation fixed by (seed, epoch), computed once per epoch and kept for the
    latest few. Subclasses implement `__len__`, `read(row)` and, where it pays, `read_rows` and
    `gather`, in the storage's own order.
    """

    random_access = True

    def __init__(self, shuffle: bool, seed: int):
        self.shuffle, self.seed = shuffle, seed
        self._orders: EpochCache[np.ndarray] = EpochCache()

    @property
    def reorders(self) -> bool:  # type: ignore[override]
        return self.shuffle

    def order(self, pass_: Pass) -> np.ndarray | None:
        """The row of each index in this pass; None for the storage's own order."""
        if not self.shuffle:
            return None
        seed, branch, epoch, size = self.seed, pass_.branch, pass_.epoch, self.span()
        return self._orders.get(
            (seed, branch, epoch, size), lambda: permutation(seed, branch, epoch, size)
        )

    def read(self, row: int) -> Any:
        raise NotImplementedError

    def read_rows(self, rows: np.ndarray) -> list[Any]:
        return [self.read(row) for row in rows.tolist()]

    def get(self, index: int, pass_: Pass) -> Any:
        order = self.order(pass_)
        return self.read(index if order is None else int(order[index]))

    def get_rows(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> list[Any]:
        return self.read_rows(self.rows(indices, pass_))

    def each_row(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> Iterator[Any]:
        for row in self.rows(indices, pass_).tolist():
            yield self.read(row)

    def rows(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> np.ndarray:
        wanted, order = np.asarray(indices, np.int64), self.order(pass_)
        return wanted if order is None else order[wanted]
