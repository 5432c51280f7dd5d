"""A flow, or each of its datapoints, several times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.base import (
    DataFlow,
    FlowIterator,
    IndexIterator,
    Pass,
    Stage,
    State,
)
from towerpack.dataflow.iterators import checked_index
from towerpack.dataflow.parallel.stage import hold_workers

ENDLESS = -1


class RepeatedData(Stage):
    """The whole flow `num` times, or for ever with `num=-1`.

    Each round is another epoch of the input, so a shuffled source is shuffled anew. Ordered; random
    access is kept for a finite `num`, and `len()` is then `num` times the input's. Worker processes
    below live on from round to round.

    >>> list(RepeatedData([1, 2], 2))
    [1, 2, 1, 2]
    """

    def __init__(self, ds: DataFlow | Iterable[Any], num: int):
        super().__init__(ds)
        if num != ENDLESS and num < 1:
            raise ValueError(f"expected a positive num, or -1 for an endless flow, received {num}")
        self.num = int(num)

    @property
    def random_access(self) -> bool:  # type: ignore[override]
        return self.num != ENDLESS and self.ds.random_access

    def __len__(self) -> int:
        if self.num == ENDLESS:
            raise TypeError("RepeatedData(ds, -1) has no len(): it is endless")
        return len(self.ds) * self.num

    def span(self) -> int:
        return len(self) if self.num == ENDLESS else self.ds.span() * self.num

    def round_pass(self, pass_: Pass, number: int) -> Pass:
        """The input's pass in one round: no two rounds of two passes are the same, if finite."""
        first = pass_.epoch if self.num == ENDLESS else pass_.epoch * self.num
        return pass_.at_epoch(first + number)

    def get(self, index: int, pass_: Pass) -> Any:
        number, inner = divmod(index, self.ds.span())
        return self.ds.get(inner, self.round_pass(pass_, number))

    def get_rows(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> list[Any]:
        numbers, inner = np.divmod(np.asarray(indices), self.ds.span())
        if len(numbers) and (numbers == numbers[0]).all():
            return self.ds.get_rows(inner, self.round_pass(pass_, int(numbers[0])))
        return super().get_rows(indices, pass_)

    def gather(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> Any:
        numbers, inner = np.divmod(np.asarray(indices), self.ds.span())
        if len(numbers) and (numbers == numbers[0]).all():
            return self.ds.gather(inner, self.round_pass(pass_, int(numbers[0])))
        return super().gather(indices, pass_)

    def iterator(self, pass_: Pass) -> FlowIterator:
        return IndexIterator(self, pass_) if self.walks_indices else _Rounds(self, pass_)


class _Rounds(FlowIterator):
    def __init__(self, flow: RepeatedData, pass_: Pass):
        self._flow, self._pass = flow, pass_
        self._release = hold_workers(flow.ds, self)
        self._open(0)

    def _open(self, number: int) -> None:
        self._number = number
        self._closed = False
        self._input = self._flow.ds.iterator(self._flow.round_pass(self._pass, number))
        self._empty = True

    def __next__(self) -> Any:
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
                        f"RepeatedData would never come to an end: a pass of "
                        f"{self._flow.ds.label()} gave no datapoint"
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

    def __init__(self, ds: DataFlow | Iterable[Any], num: int):
        super().__init__(ds)
        if num < 1:
            raise ValueError(f"expected a positive num, received {num}")
        self.num = int(num)

    def __len__(self) -> int:
        return len(self.ds) * self.num

    def span(self) -> int:
        return self.ds.span() * self.num

    def get(self, index: int, pass_: Pass) -> Any:
        return self.ds.get(index // self.num, pass_)

    def get_rows(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> list[Any]:
        wanted, places = np.unique(np.asarray(indices) // self.num, return_inverse=True)
        rows = self.ds.get_rows(wanted, pass_)
        return [rows[place] for place in places.tolist()]

    def gather(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> Any:
        return self.ds.gather(np.asarray(indices) // self.num, pass_)

    def iterator(self, pass_: Pass) -> FlowIterator:
        if self.walks_indices:
            return _IndexedPoints(self, pass_)
        return _SequentialPoints(self, pass_)


class _IndexedPoints(FlowIterator):
    """Walks the indices, but reads each datapoint of the input only once."""

    def __init__(self, flow: RepeatedDataPoint, pass_: Pass):
        self._flow, self._pass = flow, pass_
        self._index, self._size = 0, flow.span()
        self._last: tuple[int, Any] = -1, None

    def __next__(self) -> Any:
        while self._index < self._size:
            source = self._index // self._flow.num
            if self._last[0] != source:
                self._last = source, self._flow.ds.get(source, self._pass)
            self._index += 1
            if self._last[1] is not None:
                return self._last[1]
        raise StopIteration

    def state(self) -> State:
        return {"index": self._index}

    def restore(self, state: State) -> None:
        self._index = checked_index(state["index"], self._size)
        self._last = -1, None

    def close(self) -> None:
        self._index = self._size


class _SequentialPoints(FlowIterator):
    """Notes the input's position before the datapoint that is being repeated, to read it again."""

    def __init__(self, flow: RepeatedDataPoint, pass_: Pass):
        self._num, self._input = flow.num, flow.ds.iterator(pass_)
        self._times = flow.num  # that the latest datapoint has come
        self._datapoint: Any = None
        self._before: State | None = None

    def __next__(self) -> Any:
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
