"""A function applied to one component, whose result is always an array of one shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.blame import name_of
from towerpack.dataflow.parallel.map_data import MultiProcessMapData
from towerpack.dataflow.parallel.old_names import old_names


class MultiProcessMapDataComponentSharedArray(MultiProcessMapData):
    """Applies `map_func` to component `index` in worker processes; checks the array it returns.

    Ordered, every datapoint exactly once, as `MultiProcessMapData`, which also sends arrays through
    shared memory: this class only adds the check of shape and dtype.

    >>> from towerpack.dataflow import DataFromList
    >>> flow = DataFromList([[1, 'a'], [2, 'b']], shuffle=False)
    >>> twice = MultiProcessMapDataComponentSharedArray(
    ...     flow, 1, lambda x: np.full(2, x), output_shape=(2,), output_dtype='int64')
    >>> list(twice)
    [[array([1, 1]), 'a'], [array([2, 2]), 'b']]
    """

    @old_names(nr_proc="num_proc")
    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        num_proc: int,
        map_func: Callable[..., Any],
        output_shape: tuple[int, ...],
        output_dtype: Any,
        index: int | str = 0,
        **options: Any,
    ):
        component = _Component(map_func, tuple(output_shape), np.dtype(output_dtype), index)
        super().__init__(ds, num_proc, component, **options)


class _Component:
    def __init__(
        self,
        func: Callable[..., Any],
        shape: tuple[int, ...],
        dtype: np.dtype,
        index: int | str,
    ):
        self.func, self.shape, self.dtype, self.index = func, shape, dtype, index
        self.__name__ = name_of(func)

    def __call__(self, datapoint: Any) -> Any:
        if isinstance(datapoint, tuple):
            datapoint = list(datapoint)
        value = self.func(datapoint[self.index])
        if value is None:
            return None
        array = np.asarray(value)
        if array.shape != self.shape or array.dtype != self.dtype:
            raise ValueError(
                f"component {self.index!r}: expected an array of shape {self.shape} and dtype "
                f"{self.dtype} from {self.__name__}, received {array.shape} {array.dtype}; return "
                "that, or correct output_shape and output_dtype"
            )
        datapoint[self.index] = array
        return datapoint
