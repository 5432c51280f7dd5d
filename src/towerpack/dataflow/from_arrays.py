"""Whole arrays as a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.base import Pass, is_frame
from towerpack.dataflow.shuffled_source import ShuffledSource


class DataFromArrays(ShuffledSource):
    """Datapoints from the rows of equally long arrays, memory-mapped ones too.

    `DataFromArrays(images, labels)` gives `[image, label]`; a dict of arrays or a pandas frame
    gives dicts by column. Random access; batches of it are gathered with one indexing call per
    component. Single rows are views: do not write into them.

    >>> flow = DataFromArrays(np.arange(6).reshape(3, 2), np.array([7, 8, 9]))
    >>> flow[1]
    [array([2, 3]), np.int64(8)]
    """

    fresh_rows = True

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
        # asanyarray: a memory-mapped array stays one
        self.arrays = [_text(np.asanyarray(array), column) for column, array in enumerate(columns)]
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


def _text(array: np.ndarray, column: int) -> np.ndarray:
    """Strings as numpy has them: pandas stores Python objects."""
    if array.dtype != object:
        return array
    if not all(isinstance(value, str) for value in array.flat):
        raise ValueError(
            f"expected numbers or strings in column {column}, received Python objects such as "
            f"{next(value for value in array.flat if not isinstance(value, str))!r}; convert the "
            "column, or fill what is missing"
        )
    return array.astype(str)
