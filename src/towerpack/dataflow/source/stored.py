"""Stored data with random access, which can be read in a shuffled order: lists and arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from towerpack.core import logger
from towerpack.core.seeds import permutation
from towerpack.dataflow.base import DataFlow, Indices
from towerpack.dataflow.epoch import Epoch, EpochCache
from towerpack.dataflow.source.iterable import is_frame, require_positions
from towerpack.dataflow.statistics import walk

TRAINING_PARTS = ("train", "extra")  # the latter of SVHN


class ShuffledSource(DataFlow):
    """Base of sources with random access that can be read in a shuffled order.

    By default every source and every reader keeps the order of its data: index i is row i, and two
    sources can be joined. `shuffle=True` gives another order in each epoch: a permutation fixed by
    (seed, epoch), which is computed once and kept for the latest few epochs.

    Subclasses implement `__len__`, `stored(row)` and, where this is faster, `stored_rows` and
    `gather`. Rows are numbered in the order of the storage.
    """

    order_is_chosen = False
    """Whether the user has asked for this order, so that a trainer need not warn of it."""

    def __init__(self, shuffle: bool, seed: int):
        self.shuffle, self.seed = shuffle, seed
        self._orders: EpochCache[np.ndarray] = EpochCache()

    @property
    def reorders(self) -> bool:  # type: ignore[override]
        return self.shuffle

    def stored(self, row: int) -> Any:
        """One datapoint, by its row."""
        raise NotImplementedError

    def stored_rows(self, rows: np.ndarray) -> list[Any]:
        """Several datapoints, by their rows."""
        return [self.stored(row) for row in rows.tolist()]

    def order(self, epoch: Epoch) -> np.ndarray | None:
        """The row of each index in this epoch; None for the order of the storage."""
        if not self.shuffle:
            return None
        seed, branch, number, size = self.seed, epoch.branch, epoch.number, self.num_indices()
        return self._orders.get(
            (seed, branch, number, size), lambda: permutation(seed, branch, number, size)
        )

    def places(self, indices: Indices, epoch: Epoch) -> np.ndarray:
        """The rows of these indices."""
        wanted, order = np.asarray(indices, np.int64), self.order(epoch)
        return wanted if order is None else order[wanted]

    def rows(self, indices: Indices, epoch: Epoch) -> list[Any]:
        if len(indices) != 1:
            return self.stored_rows(self.places(indices, epoch))
        # For a single datapoint, numpy's calls would be the largest cost.
        order = self.order(epoch) if self.shuffle else None
        return [self.stored(int(indices[0] if order is None else order[indices[0]]))]


class DataFromList(ShuffledSource):
    """The items of a list as datapoints; with `shuffle=True` in another order in each epoch.

    Random access; every item once per epoch. The datapoints are the items themselves, not copies.

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

    def stored(self, row: int) -> Any:
        return self.lst[row]


class DataFromArrays(ShuffledSource):
    """Datapoints from the rows of equally long arrays, which may be memory-mapped.

    `DataFromArrays(images, labels)` gives `[image, label]`; a dict of arrays or a pandas frame
    gives dicts by column. Random access; a batch takes one indexing call per component. Single rows
    are views: do not write into them.

    >>> flow = DataFromArrays(np.arange(6).reshape(3, 2), np.array([7, 8, 9]))
    >>> flow[1]
    [array([2, 3]), np.int64(8)]
    """

    def __init__(
        self, *arrays: np.ndarray | Mapping[str, np.ndarray], shuffle: bool = False, seed: int = 0
    ):
        super().__init__(shuffle, seed)
        first: Any = arrays[0] if len(arrays) == 1 else None
        if isinstance(first, Mapping) or is_frame(first):
            self.keys: list[str] | None = list(first.columns if is_frame(first) else first)
            columns = [first[key] for key in self.keys]
        else:
            self.keys = None
            columns = list(arrays)
        self.arrays = [_text(_as_array(array), column) for column, array in enumerate(columns)]
        if not self.arrays or any(array.ndim == 0 for array in self.arrays):
            raise ValueError("expected at least one array, each with a first axis of datapoints")
        lengths = [len(array) for array in self.arrays]
        if len(set(lengths)) > 1:
            raise ValueError(f"expected arrays of one length, received lengths {lengths}")

    def __len__(self) -> int:
        return len(self.arrays[0])

    def columns(self) -> Any:
        """The arrays, by their position or key in a datapoint."""
        return self._datapoint(self.arrays)

    def _datapoint(self, components: Sequence[Any]) -> Any:
        if self.keys is None:
            return list(components)
        return dict(zip(self.keys, components, strict=True))

    def stored(self, row: int) -> Any:
        return self._datapoint([array[row] for array in self.arrays])

    def stored_rows(self, rows: np.ndarray) -> list[Any]:
        # One call per component, then rows of the result: far cheaper than indexing each row.
        columns = zip(*[array[rows] for array in self.arrays], strict=True)
        if self.keys is None:
            return list(map(list, columns))
        return [dict(zip(self.keys, row, strict=True)) for row in columns]

    def gather(self, indices: Indices, epoch: Epoch) -> Any:
        rows = self.places(indices, epoch)
        batch = []
        for array in self.arrays:
            out = epoch.allocate((len(rows), *array.shape[1:]), array.dtype)
            # mode="clip" lets `take` write directly into `out`; all rows are in range.
            batch.append(np.take(array, rows, axis=0, out=out, mode="clip"))
        return self._datapoint(batch)


def _as_array(column: Any) -> np.ndarray:
    """A memory-mapped array stays as it is."""
    several = isinstance(column, tuple | list) and len(column) > 1
    if several and all(hasattr(part, "shape") for part in column):
        shapes = [part.shape for part in column]
        if isinstance(column, tuple) or len(set(shapes)) > 1:
            raise ValueError(
                f"expected an array, received a {type(column).__name__} of arrays of the shapes "
                f"{', '.join(map(str, shapes[:8]))}; write DataFromArrays(x, y), an argument for "
                "each component of a datapoint"
            )
    return np.asanyarray(column)


def _text(array: np.ndarray, column: int) -> np.ndarray:
    """Strings as numpy stores them; pandas stores Python objects."""
    if array.dtype != object:
        return array
    if not all(isinstance(value, str) for value in array.flat):
        raise ValueError(
            f"expected numbers or strings in column {column}, received Python objects such as "
            f"{next(value for value in array.flat if not isinstance(value, str))!r}; convert the "
            "column, or fill what is missing"
        )
    return array.astype(str)


def shuffle_train(name: str, shuffle: bool | None) -> bool:
    """The default of data sets that know their parts: only the training part is shuffled."""
    return name in TRAINING_PARTS if shuffle is None else shuffle


def log_fixed_order(flow: DataFlow) -> None:
    """Warns if a flow for training gives its datapoints in the same order in every epoch."""
    stages = walk(flow)
    sources = [stage for stage in stages if isinstance(stage, ShuffledSource)]
    stored = [stage.label() for stage in sources if not stage.order_is_chosen]
    if stored and not any(stage.reorders for stage in stages):
        logger.warning(
            "%s gives its datapoints in the same order in every epoch; pass it shuffle=True to "
            "train on a new order each epoch",
            stored[0],
        )
