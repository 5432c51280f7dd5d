"""Datapoints in a random order: of the whole flow, or of a window that moves over it."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from towerpack.core.seeds import Stream
from towerpack.dataflow.base import DataFlow
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.iterators import FlowIterator, State
from towerpack.dataflow.stage.base import RandomOrderStage
from towerpack.dataflow.stage.drawn import DrawnInput


class ShuffleData(RandomOrderStage):
    """All datapoints once per epoch, in an order fixed by (seed, epoch).

    The input needs random access, which is kept; nothing is buffered.

    >>> sorted(ShuffleData([3, 1, 2]))
    [1, 2, 3]
    """

    def __init__(self, ds: DataFlow | Iterable[Any], *, seed: int = 0):
        super().__init__(ds, seed)

    def draw_order(self, epoch: Epoch) -> np.ndarray:
        rng = self.stream(epoch, "order").generator(epoch.number, 0)
        return rng.permutation(self.ds.num_indices())


class LocallyShuffleData(RandomOrderStage):
    """Shuffles within a buffer that moves over the input, for inputs too slow to read at random.

    Each datapoint comes exactly `num_reuse` times per epoch. `buffer_size` datapoints are held;
    when one has come for the last time, the next one of the input takes its place. The buffer is
    shuffled every `shuffle_interval` datapoints (a third of the buffer unless given). A larger
    buffer is more random.

    Over an input with random access, this flow has it too and holds nothing: the same order is
    computed for the indices alone. Otherwise a state is restored by reading about one buffer again.

    >>> sorted(LocallyShuffleData([1, 2, 3], buffer_size=2, num_reuse=2))
    [1, 1, 2, 2, 3, 3]
    """

    keeps_rows = True
    needs_random_access = False

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        buffer_size: int,
        num_reuse: int = 1,
        shuffle_interval: int | None = None,
        *,
        seed: int = 0,
    ):
        super().__init__(ds, seed)
        if buffer_size < 1 or num_reuse < 1 or (shuffle_interval or 1) < 1:
            raise ValueError(
                "expected positive buffer_size, num_reuse and shuffle_interval, received "
                f"{buffer_size}, {num_reuse} and {shuffle_interval}"
            )
        self.buffer_size, self.num_reuse = buffer_size, num_reuse
        self.shuffle_interval = shuffle_interval or max(1, buffer_size // 3)

    def __len__(self) -> int:
        return len(self.ds) * self.num_reuse

    def num_indices(self) -> int:
        return self.ds.num_indices() * self.num_reuse

    def sequential(self, epoch: Epoch) -> FlowIterator:
        return _LocalShuffle(self, epoch)

    def draw_order(self, epoch: Epoch) -> np.ndarray:
        size = self.ds.num_indices()
        if self.num_reuse > 1 or self.shuffle_interval > self.buffer_size:
            return np.fromiter(self.leaving(epoch, iter(range(size))), np.int64)
        # The same order as `leaving` gives, an interval at a time: a hundred times faster.
        stream = self.stream(epoch, "local")
        buffer = np.arange(min(self.buffer_size, size))
        arrived, runs = len(buffer), [buffer[:0]]
        while len(buffer):
            rng = stream.generator(epoch.number, len(runs) - 1)
            buffer = buffer[rng.permutation(len(buffer))]
            runs.append(buffer[: self.shuffle_interval])
            entering = np.arange(arrived, min(arrived + self.shuffle_interval, size))
            arrived += len(entering)
            buffer = np.concatenate([buffer[self.shuffle_interval :], entering])
        return np.concatenate(runs)

    def leaving(self, epoch: Epoch, arriving: Iterator[int]) -> Iterator[int]:
        """The order in which datapoints leave, numbered as they arrive."""
        # A stream of its own, since another thread may continue this generator.
        stream = Stream(self.seed, *epoch.branch, self.height, "local")
        interval = self.shuffle_interval
        buffer: deque[tuple[int, int]] = deque()  # (number, how often it has yet to leave)
        for left in itertools.count():
            for number in itertools.islice(arriving, self.buffer_size - len(buffer)):
                buffer.append((number, self.num_reuse))
            if not buffer:
                return
            if left % interval == 0:
                items = list(buffer)
                order = stream.generator(epoch.number, left // interval).permutation(len(items))
                buffer = deque(items[i] for i in order.tolist())
            number, times = buffer.popleft()
            if times > 1:
                buffer.append((number, times - 1))
            yield number


class _LocalShuffle(FlowIterator):
    """Iterates over the input, and computes the order for the numbers of its datapoints."""

    def __init__(self, flow: LocallyShuffleData, epoch: Epoch):
        self._flow, self._epoch = flow, epoch
        self._input = DrawnInput(flow.ds, epoch)
        self._begin(drawn=0)

    def _begin(self, drawn: int) -> None:
        self._order = self._flow.leaving(self._epoch, self._arriving(drawn))
        self._left, self._times = 0, Counter[int]()
        self._replaying = False

    def _arriving(self, drawn: int) -> Iterator[int]:
        yield from range(drawn)
        if not self._replaying:  # otherwise the input had ended at this point
            yield from self._input.numbers()

    def draw(self) -> Any:
        number = next(self._order)
        datapoint = self._input.held[number]
        if self._leaves_for_good(number):
            del self._input.held[number]
        return datapoint

    def _leaves_for_good(self, number: int) -> bool:
        self._left += 1
        self._times[number] += 1
        if self._times[number] < self._flow.num_reuse:
            return False
        del self._times[number]
        return True

    def state(self) -> State:
        return {"left": self._left, "input": self._input.state()}

    def restore(self, state: State) -> None:
        drawn = state["input"]["next"]
        self._begin(drawn)
        held = set(range(drawn))
        self._replaying = True
        for _ in range(state["left"]):
            number = next(self._order)
            if self._leaves_for_good(number):
                held.remove(number)
        self._replaying = False
        self._input.restore(state["input"], held)

    def close(self) -> None:
        self._input.close()
        self._order = iter(())
