"""A list as a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.base import require_positions
from towerpack.dataflow.shuffled_source import ShuffledSource


class DataFromList(ShuffledSource):
    """The items of a list as datapoints; with `shuffle=True` in another order each epoch.

    Random access; every item once per pass. The items themselves are given out, not copies.

    >>> list(DataFromList([[1], [2], [3]]))
    [[1], [2], [3]]
    """

    def __init__(self, lst: Sequence[Any], shuffle: bool = False, *, seed: int = 0):
        super().__init__(shuffle, seed)
        if not hasattr(lst, "__getitem__") or not hasattr(lst, "__len__"):
            raise TypeError(
                f"expected a list or another sequence, received {lst!r} ({type(lst).__name__}); "
                "use DataFromIterable or DataFromGenerator for what can only be iterated"
            )
        require_positions(lst)
        self.lst = lst

    def __len__(self) -> int:
        return len(self.lst)

    def read(self, row: int) -> Any:
        return self.lst[row]

    def read_rows(self, rows: np.ndarray) -> list[Any]:
        return list(map(self.lst.__getitem__, rows.tolist()))
