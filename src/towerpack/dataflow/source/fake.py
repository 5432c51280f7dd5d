"""Random arrays as a source, to try a pipeline or a model without data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.base import DataFlow, Indices
from towerpack.dataflow.epoch import Epoch, RandomStage


class FakeData(RandomStage, DataFlow):
    """`size` datapoints of random arrays with the given shapes.

    Random access; each array is fixed by (seed, epoch, index). With `random=False` one datapoint is
    drawn once and then repeated at no cost, to time the stages after it.

    `dtype` and `domain` apply to all components, or are lists with one entry for each. Numbers of
    `domain=(a, b)` satisfy a <= x < b.

    >>> flow = FakeData([[4, 4], []], dtype=["float32", "int32"], domain=[(0, 1), (5, 6)])
    >>> image, label = flow[0]
    >>> image.shape, image.dtype.name, label
    ((4, 4), 'float32', array(5, dtype=int32))
    """

    def __init__(
        self,
        shapes: Sequence[Sequence[int]],
        size: int = 1000,
        random: bool = True,
        dtype: Any = "float32",
        domain: Any = (0, 1),
        *,
        seed: int = 0,
    ):
        self.shapes = [tuple(shape) for shape in shapes]
        self._size, self.random, self.seed = int(size), random, seed
        self.dtypes = [np.dtype(x) for x in _one_each(dtype, len(self.shapes), "dtype")]
        self.domains = _one_each(domain, len(self.shapes), "domain")
        self._fixed: list[Any] | None = None

    def __len__(self) -> int:
        return self._size

    def rows(self, indices: Indices, epoch: Epoch) -> list[Any]:
        if self.random:
            return [self._draw(int(index), epoch) for index in indices]
        if self._fixed is None:
            self._fixed = self._draw(0, Epoch())
        return [list(self._fixed) for _ in indices]

    def _draw(self, index: int, epoch: Epoch) -> list[Any]:
        rng = self.stream(epoch, "fake").generator(epoch.number, index)
        return [
            _uniform(rng, shape, dtype, *domain)
            for shape, dtype, domain in zip(self.shapes, self.dtypes, self.domains, strict=True)
        ]


def _uniform(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, low: float, high: float
) -> np.ndarray:
    if dtype.kind in "iub":
        whole = rng.integers(math.ceil(low), max(math.ceil(high), math.ceil(low) + 1), shape)
        return np.asarray(whole).astype(dtype)
    single = rng.random(shape, np.float64 if dtype == np.float64 else np.float32)
    return np.asarray(single * (high - low) + low).astype(dtype)


def _one_each(value: Any, count: int, name: str) -> list[Any]:
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"expected {count} of {name}, one for each shape, received {len(value)}")
    return value
