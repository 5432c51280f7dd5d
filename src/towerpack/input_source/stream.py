"""A flow as one endless stream."""

from __future__ import annotations

from typing import Any

from towerpack.dataflow.base import DataFlow, State
from towerpack.dataflow.iterators import Accept
from towerpack.dataflow.stacking import Allocate
from towerpack.input_source.journal import Mark


class FlowStream:
    """A flow pass after pass, or one pass of it, from a position on.

    `epoch` and `batch` say where the datapoint is that came last: its pass, and its number there.
    """

    def __init__(self, flow: DataFlow, begin: Mark, endless: bool = True):
        self._flow, self._endless = flow, endless
        self.epoch, self.batch = begin.flow["epoch"], begin.batch - 1
        self._skip = begin.skip
        self._datapoints = flow.iterate(self.epoch)
        self._empty = "at" not in begin.flow
        if not self._empty:
            self._datapoints.restore(begin.flow)

    def __iter__(self) -> FlowStream:
        return self

    def __next__(self) -> Any:
        while True:
            for datapoint in self._datapoints:
                self.batch += 1
                self._empty = False
                if not self._skip:
                    return datapoint
                self._skip -= 1
            self._begin_pass()

    @property
    def stacks(self) -> bool:
        """Whether `next_stack` may give something."""
        return not self._skip and self._datapoints.stacks

    def next_stack(self, count: int, allocate: Allocate, accept: Accept) -> int:
        """Shows the next datapoints of this pass as one to `accept`; see `FlowIterator`."""
        taken = self._datapoints.next_stack(count, allocate, accept)
        self.batch += taken
        return taken

    def _begin_pass(self) -> None:
        self._datapoints.close()
        if self._empty:
            raise ValueError(f"{self._flow.label()} produced nothing in a whole pass; is it empty?")
        if not self._endless:
            raise StopIteration
        self.epoch, self.batch, self._empty = self.epoch + 1, -1, True
        self._datapoints = self._flow.iterate(self.epoch)

    def state(self) -> State:
        """Of the flow, after the datapoint that came last."""
        return self._datapoints.state()

    def close(self) -> None:
        self._datapoints.close()
