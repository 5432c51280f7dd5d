"""Passes of a given length, whatever the length of the input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from towerpack.dataflow.base import (
    CountingStage,
    DataFlow,
    DroppedDatapoint,
    FlowIterator,
    IndexIterator,
    Pass,
    State,
)
from towerpack.dataflow.parallel.stage import hold_workers
from towerpack.dataflow.statistics import walk


class FixedSizeData(CountingStage):
    """Passes of exactly `size` datapoints, taken from the input's passes strung together.

    With `keep_state=True` each pass goes on where the one before it ended: five datapoints and size
    3 give 012, 340, 123. With False each begins at the start of a pass of the input: 012, 012.
    Either way the passes of the input are its epochs 0, 1, 2, ..., so a shuffled one is shuffled
    anew.

    Ordered; random access is kept. If the input has none, or has a function that might drop
    datapoints, a pass first reads from the beginning to where it starts, unless this object has
    just delivered the pass before it, or a state is restored. Worker processes below live on within
    a pass, and with `kept_workers` from one pass to the next.

    >>> flow = FixedSizeData(range(5), 3)
    >>> list(flow), list(flow), list(flow)
    ([0, 1, 2], [3, 4, 0], [1, 2, 3])
    """

    def __init__(self, ds: DataFlow | Iterable[Any], size: int, keep_state: bool = True):
        super().__init__(ds)
        if size < 1:
            raise ValueError(f"expected a positive size, received {size}")
        self._size, self.keep_state = int(size), keep_state
        if self.ds.random_access and self.ds.span() == 0:
            raise ValueError(f"expected datapoints, but {self.ds.label()} is empty")
        # Where the pass after the latest complete one begins: saves reading up to there.
        self._follows: dict[Pass, State] = {}

    def __len__(self) -> int:
        return self._size

    def span(self) -> int:
        return self._size

    def start(self, pass_: Pass, length: int) -> tuple[int, int]:
        """The input's epoch, and the position in it, at which a pass starts."""
        if self.keep_state:
            return divmod(pass_.epoch * self._size, length)
        return pass_.epoch * -(-self._size // length), 0

    def sources(self, indices: np.ndarray, pass_: Pass) -> tuple[np.ndarray, np.ndarray]:
        length = self.ds.span()
        epoch, position = self.start(pass_, length)
        rounds, inner = np.divmod(position + indices, length)
        return epoch + rounds, inner

    def get(self, index: int, pass_: Pass) -> Any:
        epoch, inner = self.sources(np.asarray(index), pass_)
        datapoint = self.ds.get(int(inner), pass_.at_epoch(int(epoch)))
        if datapoint is None:
            raise DroppedDatapoint(index, self.label())
        return datapoint

    def gather(self, indices: Sequence[int] | np.ndarray, pass_: Pass) -> Any:
        epochs, inner = self.sources(np.asarray(indices), pass_)
        if len(epochs) and (epochs == epochs[0]).all():
            return self.ds.gather(inner, pass_.at_epoch(int(epochs[0])))
        return super().gather(indices, pass_)

    def iterator(self, pass_: Pass) -> FlowIterator:
        return IndexIterator(self, pass_) if self.walks_indices else _FixedSize(self, pass_)


def _may_drop(flow: DataFlow) -> bool:
    """Whether a pass may be shorter than `span()`: if any stage drops datapoints, even below one
    that fills them up."""
    return any(stage.drops is not False for stage in walk(flow))


class _FixedSize(FlowIterator):
    """Goes to its start at the first datapoint, for a state may be restored before that."""

    def __init__(self, flow: FixedSizeData, pass_: Pass):
        self._flow, self._pass = flow, pass_
        self._input: FlowIterator | None = None
        self._epoch = self._left = -1
        self._release: Callable[[], Any] = lambda: None
        self._last: State | None = None  # the state at the end, when the input is closed

    def _start(self) -> None:
        flow, follows = self._flow, self._flow._follows.get(self._pass)
        self._left = flow._size
        if follows is not None:
            self._go(follows["epoch"], follows["input"])
            return
        try:
            length = flow.ds.span()
        except TypeError:
            length = None
        if length == 0:
            raise ValueError(f"FixedSizeData expected datapoints, but {flow.ds.label()} is empty")
        if length is None and not flow.keep_state:
            self._go(self._pass.epoch)
        elif length is None or (flow.keep_state and _may_drop(flow.ds)):
            self._skip(0, self._pass.epoch * flow._size)
        else:
            self._skip(*flow.start(self._pass, length))

    def _go(self, epoch: int, state: State | None = None) -> None:
        if self._input is None:
            self._release = hold_workers(self._flow.ds, self)
        else:
            self._input.close()
        self._epoch = epoch
        self._input = self._flow.ds.iterator(self._pass.at_epoch(epoch))
        if state is not None:
            self._input.restore(state)

    def _skip(self, epoch: int, count: int) -> None:
        self._go(epoch)
        for _ in range(count):
            self._draw()

    def _draw(self) -> Any:
        for _ in range(2):
            if self._input is None:
                break
            try:
                return next(self._input)
            except StopIteration:
                self._go(self._epoch + 1)
        raise ValueError(
            f"FixedSizeData expected datapoints, but a pass of {self._flow.ds.label()} gave none"
        )

    def __next__(self) -> Any:
        if self._left < 0:
            self._start()
        if self._left == 0:
            self._last = self.state()
            self.close()
            raise StopIteration
        datapoint = self._draw()
        self._left -= 1
        if self._left == 0 and self._flow.keep_state:
            after = self._pass.at_epoch(self._pass.epoch + 1)
            self._flow._follows = {after: self.state()}
        return datapoint

    def state(self) -> State:
        if self._last is not None:
            return self._last
        if self._input is None:
            return {"left": -1, "epoch": -1, "input": None}
        return {"left": self._left, "epoch": self._epoch, "input": self._input.state()}

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
