"""Base classes of stages: flows that make datapoints from those of other flows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.base import DataFlow, Indices
from towerpack.dataflow.epoch import Epoch, EpochCache, RandomStage
from towerpack.dataflow.iterators import FlowIterator, IndexIterator, InputIterator
from towerpack.dataflow.source.iterable import as_flow
from towerpack.dataflow.stacking import DroppedDatapoint
from towerpack.dataflow.statistics import walk


class Stage(DataFlow):
    """Base class of stages with one input, `self.ds`, that make one datapoint of each of its.

    A subclass defines `apply`, which serves reading by index as well as iterating.

    >>> class Negate(Stage):
    ...     def apply(self, rows, indices, epoch):
    ...         return [None if row is None else [-x for x in row] for row in rows]
    >>> list(Negate([[1, 2], [3, 4]]))
    [[-1, -2], [-3, -4]]
    """

    def __init__(self, ds: DataFlow | Iterable[Any]):
        self.ds = as_flow(ds)

    def inputs(self) -> Sequence[DataFlow]:
        return (self.ds,)

    def __len__(self) -> int:
        return len(self.ds)

    def num_indices(self) -> int:
        return self.ds.num_indices()

    def apply(self, rows: list[Any], indices: Indices, epoch: Epoch) -> list[Any]:
        """The stage's datapoints made of the input's; None for a datapoint that is dropped.

        `indices` number the datapoints in the epoch. Over an input that is iterated over, they
        count what it gave.
        """
        raise NotImplementedError

    def rows(self, indices: Indices, epoch: Epoch) -> list[Any]:
        return self.apply(self.ds.read(indices, epoch), indices, epoch)

    def sequential(self, epoch: Epoch) -> FlowIterator:
        for cls in type(self).__mro__:
            if "apply" in cls.__dict__ and cls is not Stage:
                return ApplyIterator(self, epoch)
            if "rows" in cls.__dict__:
                break
        raise TypeError(
            f"{type(self).__name__} has to iterate over its input; define `apply(rows, indices, "
            "epoch)`, or `__iter__` as a generator"
        )


class ApplyIterator(InputIterator):
    """Applies a stage to one datapoint of its input after another."""

    def __init__(self, stage: Stage, epoch: Epoch, key: str | None = "index"):
        super().__init__(stage.ds.open(epoch), key)
        self._apply, self._epoch = stage.apply, epoch

    def draw(self) -> Any:
        while True:
            datapoint = next(self.input)
            index, self.count = self.count, self.count + 1
            datapoint = self._apply([datapoint], [index], self._epoch)[0]
            if datapoint is not None:
                return datapoint


class ProxyDataFlow(Stage):
    """A flow that passes on another one, `self.ds`, unchanged, with its random access and position.

    It is meant to be derived from: define `apply`, or `__iter__` as a generator, which may use
    `iter(self.ds)`.
    """

    keeps_rows = True

    def apply(self, rows: list[Any], indices: Indices, epoch: Epoch) -> list[Any]:
        return rows

    def gather(self, indices: Indices, epoch: Epoch) -> Any:
        if self._changes():
            return super().gather(indices, epoch)
        return self.ds.read_batch(indices, epoch)

    def iterator(self, epoch: Epoch) -> FlowIterator:
        return super().iterator(epoch) if self._changes() else self.ds.open(epoch)

    def _changes(self) -> bool:
        cls = type(self)
        return cls.apply is not ProxyDataFlow.apply or cls.rows is not Stage.rows


class IndexStage(DataFlow):
    """Base of stages whose datapoints are those of their inputs, at other indices.

    Subclasses define `parts`. Batches that come from one part stay whole batches of the input.
    """

    def parts(self, indices: np.ndarray, epoch: Epoch) -> Iterable[tuple[DataFlow, Any, Epoch]]:
        """Which flow has these datapoints, at which indices, in which epoch: runs, in order."""
        raise NotImplementedError

    def rows(self, indices: Indices, epoch: Epoch) -> list[Any]:
        rows: list[Any] = []
        for flow, inner, its_epoch in self.parts(np.asarray(indices), epoch):
            rows += flow.read(inner, its_epoch)
        if self.counts_datapoints:
            refuse_dropped(self, rows, indices)
        return rows

    def gather(self, indices: Indices, epoch: Epoch) -> Any:
        parts = list(self.parts(np.asarray(indices), epoch))
        if len(parts) == 1:
            flow, inner, its_epoch = parts[0]
            return flow.read_batch(inner, its_epoch)
        return super().gather(indices, epoch)


class ReorderStage(Stage):
    """Base of stages that read one input, which has random access, in an order of their own.

    Subclasses define `order` and, if they have another number of indices, `num_indices`.
    """

    needs_random_access = True

    def __init__(self, ds: DataFlow | Iterable[Any]):
        super().__init__(ds)
        if self.needs_random_access and not self.ds.random_access:
            raise TypeError(
                f"{type(self).__name__} needs an input with random access, but "
                f"{self.ds.label()} has none; build it on DataFromArrays, DataFromList, LMDBData "
                "or another source that has, or use LocallyShuffleData or CacheData"
            )

    def order(self, indices: Any, epoch: Epoch) -> Any:
        """The input's index for an index of this flow, or an array of them for an array."""
        raise NotImplementedError

    def rows(self, indices: Indices, epoch: Epoch) -> list[Any]:
        if len(indices) == 1:  # without the fixed costs of numpy
            inner: Any = [int(self.order(indices[0], epoch))]
        else:
            inner = self.order(np.asarray(indices), epoch)
        rows = self.ds.read(inner, epoch)
        if self.counts_datapoints:
            refuse_dropped(self, rows, indices)
        return rows

    def gather(self, indices: Indices, epoch: Epoch) -> Any:
        return self.ds.read_batch(self.order(np.asarray(indices), epoch), epoch)

    def __len__(self) -> int:
        if self.ds.num_indices() != len(self.ds):  # len raises if it is unknown which are dropped
            raise TypeError(f"{self.label()} has no len(): its input drops datapoints")
        return self.num_indices()

    def sequential(self, epoch: Epoch) -> FlowIterator:
        return IndexIterator(self, epoch)


class RandomOrderStage(RandomStage, ReorderStage):
    """Base of stages that draw an order for each epoch; subclasses define `draw_order`."""

    keeps_rows = True
    reorders = True

    def __init__(self, ds: DataFlow | Iterable[Any], seed: int):
        super().__init__(ds)
        self.seed = seed
        self._orders: EpochCache[np.ndarray] = EpochCache()

    def draw_order(self, epoch: Epoch) -> np.ndarray:
        """The input's index for each index of this flow."""
        raise NotImplementedError

    def order(self, indices: Any, epoch: Epoch) -> Any:
        key = epoch.number, epoch.branch, self.seed, self.ds.num_indices()
        return self._orders.get(key, lambda: self.draw_order(epoch))[indices]


class MergingStage(DataFlow):
    """Base of stages that read several flows, `self.flows`, each in a branch of its own.

    So two inputs with equal seeds, or one flow that is given twice, are not shuffled alike.
    """

    def __init__(self, flows: Iterable[DataFlow | Iterable[Any]]):
        if isinstance(flows, DataFlow):
            raise TypeError(f"expected a list of flows, received one {flows.label()}")
        self.flows = [as_flow(flow) for flow in flows]
        if not self.flows:
            raise ValueError(f"{type(self).__name__} expected at least one flow, received none")

    def inputs(self) -> Sequence[DataFlow]:
        return self.flows


def runs(owners: np.ndarray, inner: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Splits indices where their owner changes: each run's owner, and its part of `inner`."""
    if len(owners) == 1:  # without the fixed costs of numpy
        yield int(owners[0]), inner
    elif len(owners):
        ends = [*(np.flatnonzero(owners[1:] != owners[:-1]) + 1).tolist(), len(owners)]
        begin = 0
        for end in ends:
            yield int(owners[begin]), inner[begin:end]
            begin = end


def refuse_dropped(stage: DataFlow, rows: Sequence[Any], indices: Indices) -> None:
    """Raises DroppedDatapoint if a datapoint is missing that the stage counts."""
    for row, index in zip(rows, indices, strict=True):
        if row is None:
            raise DroppedDatapoint(int(index), stage.label())


def require_fixed_order(stage: DataFlow, ds: DataFlow, what: str) -> None:
    """Refuses an input in which an index means another datapoint in another epoch."""
    for below in walk(ds):
        if below.reorders:
            raise ValueError(
                f"{type(stage).__name__} knows {what} by index, but {below.label()} below it gives "
                "an index another datapoint each epoch; pass it shuffle=False: "
                f"{type(stage).__name__} shuffles by itself"
            )
