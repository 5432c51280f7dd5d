"""Epochs of a given length, whatever the length of the input."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.iterators import FlowIterator, State
from towerpack.dataflow.parallel.stage import hold_workers
from towerpack.dataflow.stage.base import IndexStage, Stage, runs
from towerpack.dataflow.statistics import walk


class FixedSizeData(IndexStage, Stage):
    """Epochs of exactly `size` datapoints, taken from the input's epochs one after another.

    With `keep_state=True` each epoch continues where the one before it ended: five datapoints and
    size 3 give 012, 340, 123. With False each begins at the start of an epoch of the input: 012,
    012. In both cases the input's epochs are 0, 1, 2, ..., so a shuffled one changes its order.

    Ordered; random access is kept. If the input has none, or has a function that might drop
    datapoints, an epoch first reads from the beginning to where it starts, unless this object has
    just delivered the epoch before it, or a state is restored. Worker processes below are kept
    within an epoch, and with `kept_workers` from one epoch to the next.

    >>> flow = FixedSizeData(range(5), 3)
    >>> list(flow), list(flow), list(flow)
    ([0, 1, 2], [3, 4, 0], [1, 2, 3])
    """

    keeps_rows = True
    counts_datapoints = True

    def __init__(self, ds: DataFlow | Iterable[Any], size: int, keep_state: bool = True):
        super().__init__(ds)
        if size < 1:
            raise ValueError(f"expected a positive size, received {size}")
        self._size, self.keep_state = int(size), keep_state
        if self.ds.random_access and self.ds.num_indices() == 0:
            raise ValueError(f"expected datapoints, but {self.ds.label()} is empty")
        # Where the epoch after the latest complete one begins: saves reading up to there.
        self._follows: dict[Epoch, State] = {}

    def __len__(self) -> int:
        return self._size

    def num_indices(self) -> int:
        return self._size

    def start(self, epoch: Epoch, length: int) -> tuple[int, int]:
        """The input's epoch, and the position in it, at which an epoch starts."""
        if self.keep_state:
            return divmod(epoch.number * self._size, length)
        return epoch.number * -(-self._size // length), 0

    def parts(self, indices: np.ndarray, epoch: Epoch) -> Iterable[tuple[DataFlow, Any, Epoch]]:
        length = self.ds.num_indices()
        first, position = self.start(epoch, length)
        for number, inner in runs(*np.divmod(position + indices, length)):
            yield self.ds, inner, epoch.at(first + number)

    def sequential(self, epoch: Epoch) -> FlowIterator:
        return _FixedSize(self, epoch)


def _may_drop(flow: DataFlow) -> bool:
    """Whether an epoch may be shorter than `num_indices()`: if any stage below drops datapoints."""
    return any(stage.drops is not False for stage in walk(flow))


class _FixedSize(FlowIterator):
    """Goes to its start at the first datapoint, because a state may be restored before that."""

    def __init__(self, flow: FixedSizeData, epoch: Epoch):
        self._flow, self._epoch = flow, epoch
        self._input: FlowIterator | None = None
        self._number = self._left = -1  # the input's epoch, and how many datapoints are to come
        self._release: Callable[[], Any] = lambda: None
        self._last: State | None = None  # the state at the end, when the input is closed

    def _start(self) -> None:
        flow, follows = self._flow, self._flow._follows.get(self._epoch)
        self._left = flow._size
        if follows is not None:
            self._go(follows["epoch"], follows["input"])
            return
        try:
            length = flow.ds.num_indices()
        except TypeError:
            length = None
        if length == 0:
            raise ValueError(f"FixedSizeData expected datapoints, but {flow.ds.label()} is empty")
        if length is None and not flow.keep_state:
            self._go(self._epoch.number)
        elif length is None or (flow.keep_state and _may_drop(flow.ds)):
            self._skip(0, self._epoch.number * flow._size)
        else:
            self._skip(*flow.start(self._epoch, length))

    def _go(self, number: int, state: State | None = None) -> None:
        if self._input is None:
            self._release = hold_workers(self._flow.ds, self)
        else:
            self._input.close()
        self._number = number
        self._input = self._flow.ds.open(self._epoch.at(number))
        if state is not None:
            self._input.restore(state)

    def _skip(self, number: int, count: int) -> None:
        self._go(number)
        for _ in range(count):
            self._draw()

    def _draw(self) -> Any:
        for _ in range(2):
            if self._input is None:
                break
            try:
                return next(self._input)
            except StopIteration:
                self._go(self._number + 1)
        raise ValueError(
            f"FixedSizeData expected datapoints, but an epoch of {self._flow.ds.label()} gave none"
        )

    def draw(self) -> Any:
        if self._left < 0:
            self._start()
        if self._left == 0:
            self._last = self.state()
            self.close()
            raise StopIteration
        datapoint = self._draw()
        self._left -= 1
        if self._left == 0 and self._flow.keep_state:
            after = self._epoch.at(self._epoch.number + 1)
            self._flow._follows = {after: self.state()}
        return datapoint

    def state(self) -> State:
        if self._last is not None:
            return self._last
        if self._input is None:
            return {"left": -1, "epoch": -1, "input": None}
        return {"left": self._left, "epoch": self._number, "input": self._input.state()}

    def restore(self, state: State) -> None:
        self.close()
        self._input = self._last = None
        self._left = state["left"]
        if self._left >= 0:
            self._go(state["epoch"], state["input"])

    def close(self) -> None:
        if self._input is not None:
            self._input.close()
        self._release()
        self._left = 0
