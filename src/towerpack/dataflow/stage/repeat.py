"""A flow, or each of its datapoints, several times."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from towerpack.dataflow.base import DataFlow, Indices, iterates_by_index
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.iterators import FlowIterator, IndexIterator, State
from towerpack.dataflow.parallel.stage import hold_workers
from towerpack.dataflow.stage.base import IndexStage, Stage, runs

ENDLESS = -1


class RepeatedData(IndexStage, Stage):
    """The whole flow `num` times, or endlessly with `num=-1`.

    Each round is another epoch of the input, so a shuffled source has another order in each.
    Ordered; random access is kept for a finite `num`, and `len()` is then `num` times the input's.
    Worker processes below are kept from round to round.

    >>> list(RepeatedData([1, 2], 2))
    [1, 2, 1, 2]
    """

    keeps_rows = True

    def __init__(self, ds: DataFlow | Iterable[Any], num: int):
        super().__init__(ds)
        if num != ENDLESS and num < 1:
            raise ValueError(f"expected a positive num, or -1 for an endless flow, received {num}")
        self.num = int(num)

    def indexable(self) -> bool:
        return self.num != ENDLESS and super().indexable()

    def __len__(self) -> int:
        if self.num == ENDLESS:
            raise TypeError("RepeatedData(ds, -1) has no len(): it is endless")
        return len(self.ds) * self.num

    def num_indices(self) -> int:
        return len(self) if self.num == ENDLESS else self.ds.num_indices() * self.num

    def round(self, number: int, epoch: Epoch) -> Epoch:
        """The input's epoch in one round; if `num` is finite, every round has its own."""
        first = epoch.number if self.num == ENDLESS else epoch.number * self.num
        return epoch.at(first + number)

    def parts(self, indices: np.ndarray, epoch: Epoch) -> Iterable[tuple[DataFlow, Any, Epoch]]:
        size = self.ds.num_indices()
        if len(indices) == 1:  # without the fixed costs of numpy
            number, index = divmod(int(indices[0]), size)
            yield self.ds, [index], self.round(number, epoch)
        else:
            for number, inner in runs(*np.divmod(indices, size)):
                yield self.ds, inner, self.round(number, epoch)

    def sequential(self, epoch: Epoch) -> FlowIterator:
        return _Rounds(self, epoch)


class _Rounds(FlowIterator):
    def __init__(self, flow: RepeatedData, epoch: Epoch):
        self._flow, self._epoch = flow, epoch
        self._release = hold_workers(flow.ds, self)
        self._open(0)

    def _open(self, number: int) -> None:
        self._number = number
        self._closed = False
        self._input = self._flow.ds.open(self._flow.round(number, self._epoch))
        self._empty = True

    def draw(self) -> Any:
        while not self._closed:
            try:
                datapoint = next(self._input)
                self._empty = False
                return datapoint
            except StopIteration:
                if self._number + 1 == self._flow.num:
                    self._release()
                    raise
                if self._empty and self._flow.num == ENDLESS:
                    raise ValueError(
                        "expected datapoints, but an epoch of "
                        f"{self._flow.ds.label()} gave none: RepeatedData would never end"
                    ) from None
                self._input.close()
                self._open(self._number + 1)
        raise StopIteration

    def state(self) -> State:
        return {"round": self._number, "input": self._input.state()}

    def restore(self, state: State) -> None:
        self.close()
        self._release = hold_workers(self._flow.ds, self)
        self._open(state["round"])
        self._input.restore(state["input"])
        self._empty = False  # it may be at its end

    def close(self) -> None:
        self._input.close()
        self._release()
        self._closed = True


class RepeatedDataPoint(Stage):
    """Each datapoint `num` times in a row.

    Ordered; random access is kept. The repetitions are the same object: put random augmentation
    after this stage, not before it, and do not write into them.

    >>> list(RepeatedDataPoint([1, 2], 2))
    [1, 1, 2, 2]
    """

    keeps_rows = True

    def __init__(self, ds: DataFlow | Iterable[Any], num: int):
        super().__init__(ds)
        if num < 1:
            raise ValueError(f"expected a positive num, received {num}")
        self.num = int(num)

    def __len__(self) -> int:
        return len(self.ds) * self.num

    def num_indices(self) -> int:
        return self.ds.num_indices() * self.num

    def rows(self, indices: Indices, epoch: Epoch) -> list[Any]:
        wanted, places = np.unique(np.asarray(indices) // self.num, return_inverse=True)
        rows = self.ds.read(wanted, epoch)
        return [rows[place] for place in places.tolist()]

    def gather(self, indices: Indices, epoch: Epoch) -> Any:
        return self.ds.read_batch(np.asarray(indices) // self.num, epoch)

    def iterator(self, epoch: Epoch) -> FlowIterator:
        if iterates_by_index(self.ds):
            return _IndexedPoints(self, epoch)
        return _SequentialPoints(self, epoch)


class _IndexedPoints(IndexIterator):
    """Goes through the indices, but reads each datapoint of the input only once."""

    def __init__(self, flow: RepeatedDataPoint, epoch: Epoch):
        super().__init__(flow, epoch)
        self._num, self._input = flow.num, flow.ds
        self._rows = self._latest
        self._last: tuple[int, list[Any]] = -1, []

    def _latest(self, indices: Indices, epoch: Epoch) -> list[Any]:
        source = indices[0] // self._num
        if self._last[0] != source:
            self._last = source, self._input.read([source], epoch)
        return self._last[1]


class _SequentialPoints(FlowIterator):
    """Keeps the input's state before the datapoint that is being repeated, to read it again."""

    def __init__(self, flow: RepeatedDataPoint, epoch: Epoch):
        self._num, self._input = flow.num, flow.ds.open(epoch)
        self._times = flow.num  # that the latest datapoint has come
        self._datapoint: Any = None
        self._before: State | None = None

    def draw(self) -> Any:
        if self._times == self._num:
            before = self._input.state() if self._num > 1 else None
            self._datapoint = next(self._input)
            self._before, self._times = before, 0
        self._times += 1
        return self._datapoint

    def state(self) -> State:
        if self._times == self._num:
            return {"input": self._input.state(), "times": self._num}
        return {"input": self._before, "times": self._times}

    def restore(self, state: State) -> None:
        self._input.restore(state["input"])
        self._times = self._num
        for _ in range(state["times"] % self._num):
            next(self)

    def close(self) -> None:
        self._input.close()
        self._times = self._num
