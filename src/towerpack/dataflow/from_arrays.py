"""Whole arrays as a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.base import Pass
from towerpack.dataflow.shuffled_source import ShuffledSource


class DataFromArrays(ShuffledSource):
    """Datapoints from the rows of equally long arrays, memory-mapped ones too.

    `DataFromArrays(images, labels)` gives `[image, label]`; a dict of arrays gives dicts. Random
    access; batches of it are gathered with one indexing call per component. Single rows are views:
    do not write into them.

    >>> flow = DataFromArrays(np.arange(6).reshape(3, 2), np.array([7, 8, 9]))
    >>> flow[1]
    [array([2, 3]), np.int64(8)]
    """

    fresh_rows = True

    def __init__(
        self, *arrays: np.ndarray | Mapping[str, np.ndarray], shuffle: bool = False, seed: int = 0
    ):
        super().__init__(shuffle, seed)
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            self.keys: list[str] | None = list(arrays[0])
            columns = list(arrays[0].values())
        else:
            self.keys = None
            columns = list(arrays)  # type: ignore[arg-type]
        # asanyarray: a memory-mapped array stays one
        self.arrays = [np.asanyarray(array) for array in columns]
        if not self.arrays or any(array.ndim == 0 for array in self.arrays):
            raise ValueError("expected at least one array, each with a first axis of datapoints")
        lengths = [len(array) for array in self.arrays]
        if len(set(lengths)) > 1:
            raise ValueError(f"expected arrays of one length, received lengths {lengths}")

    def __len__(self) -> int:
        return len(self.arrays[0])

    def _datapoint(self, components: Sequence[Any]) -> Any:
        if self.keys is None:
            return list(components)
        return dict(zip(self.keys, components, strict=True))

    def read(self, row: int) -> Any:
        return self._datapoint([array[row] for array in self.arrays])

    def read_rows(self, rows: np.ndarray) -> list[Any]:
        # One gather per component, then rows of the result: far cheaper than single indexing.
        columns = zip(*[array[rows] for array in self.arrays], strict=True)
        if self.keys is None:
            return list(map(list, columns))
        return [dict(zip(self.keys, row, strict=True)) for row in columns]

    def gather(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> Any:
        rows = self.rows(indices, pass_)
        batch = []
        for array in self.arrays:
            out = pass_.allocate((len(rows), *array.shape[1:]), array.dtype)
            # mode='clip' lets take write straight into `out`; the rows are in range by construction
            batch.append(np.take(array, rows, axis=0, out=out, mode="clip"))
        return self._datapoint(batch)
