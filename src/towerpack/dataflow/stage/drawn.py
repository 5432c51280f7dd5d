"""An input from which a stage draws ahead and holds datapoints back: shuffling, bucketing.

The state of such a stage is a position of the input and the numbers of the datapoints it holds,
which are read again when the state is restored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

from towerpack.dataflow.base import DataFlow, iterates_by_index
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.iterators import FlowIterator, State, checked_index

SNAPSHOT_EVERY = 64  # draws: a state costs microseconds, reading again costs more
SNAPSHOTS = 128  # kept at most; beyond that, every second one is dropped


class DrawnInput:
    """Draws datapoints, numbers them, and holds them until the stage deletes them from `held`.

    Over an input that is read by index, a number is an index, and only the held datapoints are read
    again. Over any other input, a snapshot of its state is taken now and then, and it is read again
    from the last snapshot before the oldest held datapoint.
    """

    def __init__(self, flow: DataFlow, epoch: Epoch):
        self._flow, self._epoch = flow, epoch
        self.held: dict[int, Any] = {}
        self._by_index = iterates_by_index(flow)
        self._next = 0  # number of the next draw
        self._closed = False
        self._size = flow.num_indices() if self._by_index else 0
        self._input = None if self._by_index else flow.open(epoch)
        self._snapshots: deque[tuple[int, State]] = deque()

    def numbers(self) -> Iterator[int]:
        """Draws datapoints and gives their numbers."""
        return iter(self.draw, None)

    def draw(self) -> int | None:
        """Draws one datapoint into `held` and returns its number; None at the end."""
        if self._closed:
            return None
        if self._input is not None:
            return self._draw_from(self._input)
        while self._next < self._size:
            number, self._next = self._next, self._next + 1
            datapoint = self._flow.read([number], self._epoch)[0]
            if datapoint is not None:
                self.held[number] = datapoint
                return number
        return None

    def _draw_from(self, source: FlowIterator) -> int | None:
        if self._next % SNAPSHOT_EVERY == 0:
            self._take_snapshot(source.state())
        try:
            datapoint = next(source)
        except StopIteration:
            return None
        number, self._next = self._next, self._next + 1
        self.held[number] = datapoint
        return number

    def _take_snapshot(self, state: State) -> None:
        if self._snapshots and self._snapshots[-1][0] == self._next:
            return
        self._snapshots.append((self._next, state))
        if len(self._snapshots) > SNAPSHOTS:
            self._forget_snapshots()
            if len(self._snapshots) > SNAPSHOTS:
                # The first must stay: a datapoint as old as that is still held.
                self._snapshots = deque(list(self._snapshots)[::2])

    def _forget_snapshots(self) -> None:
        oldest = min(self.held, default=self._next)
        while len(self._snapshots) > 1 and self._snapshots[1][0] <= oldest:
            self._snapshots.popleft()

    def state(self) -> State:
        if self._input is None:
            return {"next": self._next}
        if not self.held:
            return {"next": self._next, "from": self._next, "input": self._input.state()}
        self._forget_snapshots()
        number, snapshot = self._snapshots[0]
        return {"next": self._next, "from": number, "input": snapshot}

    def restore(self, state: State, held: Collection[int]) -> None:
        """Goes to that state and holds these numbers again."""
        self._closed = False
        self.held = {}
        if self._input is None:
            self._next = checked_index(state["next"], self._size)
            for number in held:
                self.held[number] = self._flow.read([number], self._epoch)[0]
            return
        self._input.restore(state["input"])
        self._next = state["from"]
        self._snapshots = deque([(state["from"], state["input"])])
        wanted = set(held)
        while self._next < state["next"]:
            drawn = self._draw_from(self._input)
            if drawn is None:
                raise ValueError(
                    f"cannot go to datapoint {state['next']}: the input ended after {self._next}; "
                    "was the state taken from another data set?"
                )
            if drawn not in wanted:
                del self.held[drawn]

    def close(self) -> None:
        self._closed = True
        self.held = {}
        if self._input is not None:
            self._input.close()
