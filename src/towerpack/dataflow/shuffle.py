"""Datapoints in a random order: of the whole flow, or of a window that moves over it."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from towerpack.core.seeds import Stream
from towerpack.dataflow.base import (
    DataFlow,
    FlowIterator,
    IndexIterator,
    Pass,
    RandomStage,
    State,
)
from towerpack.dataflow.drawn import DrawnInput
from towerpack.dataflow.epoch_cache import EpochCache
from towerpack.dataflow.reindex import Reindexed


class ShuffleData(RandomStage, Reindexed):
    """All datapoints once per pass, in an order fixed by (seed, epoch).

    The input needs random access, which is kept; nothing is buffered.

    >>> sorted(ShuffleData([3, 1, 2]))
    [1, 2, 3]
    """

    reorders = True

    def __init__(self, ds: DataFlow | Iterable[Any], *, seed: int = 0):
        super().__init__(ds)
        self.seed = seed
        self._orders: EpochCache[np.ndarray] = EpochCache()

    def span(self) -> int:
        return self.ds.span()

    def sources(self, indices: Any, pass_: Pass) -> Any:
        size = self.ds.span()
        order = self._orders.get(
            (pass_.epoch, pass_.branch, size, self.seed),
            lambda: self.stream(pass_, "order").generator(pass_.epoch, 0).permutation(size),
        )
        return order[indices]


class LocallyShuffleData(RandomStage, Reindexed):
    """Shuffles within a buffer that moves over the input, for inputs too slow to read at random.

    Each datapoint comes exactly `num_reuse` times per pass. `buffer_size` datapoints are held; each
    time one leaves for good, the next of the input enters, and every `shuffle_interval` datapoints
    (a third of the buffer unless given) the buffer is shuffled. A larger buffer is more random.

    Over an input with random access, so is this, and nothing is held: the same order is computed
    for the indices alone. Otherwise a state is restored by reading about one buffer anew.

    >>> sorted(LocallyShuffleData([1, 2, 3], buffer_size=2, num_reuse=2))
    [1, 1, 2, 2, 3, 3]
    """

    reorders = True

    def __init__(
        self,
        ds: DataFlow | Iterable[Any],
        buffer_size: int,
        num_reuse: int = 1,
        shuffle_interval: int | None = None,
        *,
        seed: int = 0,
    ):
        super().__init__(ds)
        if buffer_size < 1 or num_reuse < 1 or (shuffle_interval or 1) < 1:
            raise ValueError(
                "expected positive buffer_size, num_reuse and shuffle_interval, received "
                f"{buffer_size}, {num_reuse} and {shuffle_interval}"
            )
        self.buffer_size, self.num_reuse, self.seed = buffer_size, num_reuse, seed
        self.shuffle_interval = shuffle_interval or max(1, buffer_size // 3)
        self._orders: EpochCache[np.ndarray] = EpochCache()

    def require_random_access(self) -> None:
        pass  # it is kept where there is one

    def __len__(self) -> int:
        return len(self.ds) * self.num_reuse

    def span(self) -> int:
        return self.ds.span() * self.num_reuse

    def iterator(self, pass_: Pass) -> FlowIterator:
        if self.walks_indices:
            return IndexIterator(self, pass_)
        return _LocalShuffle(self, pass_)

    def sources(self, indices: Any, pass_: Pass) -> Any:
        size = self.ds.span()
        order = self._orders.get(
            (pass_.epoch, pass_.branch, size, self.seed),
            lambda: self._whole_order(pass_, size),
        )
        return order[indices]

    def _whole_order(self, pass_: Pass, size: int) -> np.ndarray:
        if self.num_reuse > 1 or self.shuffle_interval > self.buffer_size:
            return np.fromiter(self.order(pass_, iter(range(size))), np.int64)
        # The same order as `order` gives, an interval at a time: a hundred times quicker.
        stream = self.stream(pass_, "local")
        buffer = np.arange(min(self.buffer_size, size))
        arrived, runs = len(buffer), [buffer[:0]]
        while len(buffer):
            rng = stream.generator(pass_.epoch, len(runs) - 1)
            buffer = buffer[rng.permutation(len(buffer))]
            runs.append(buffer[: self.shuffle_interval])
            entering = np.arange(arrived, min(arrived + self.shuffle_interval, size))
            arrived += len(entering)
            buffer = np.concatenate([buffer[self.shuffle_interval :], entering])
        return np.concatenate(runs)

    def order(self, pass_: Pass, arriving: Iterator[int]) -> Iterator[int]:
        """The order in which datapoints leave, numbered as they arrive."""
        return _local_order(
            arriving,
            self.buffer_size,
            self.num_reuse,
            self.shuffle_interval,
            Stream(self.seed, *pass_.branch, self.height, "local"),
            pass_.epoch,
        )


def _local_order(
    arriving: Iterator[int],
    buffer_size: int,
    num_reuse: int,
    interval: int,
    stream: Stream,
    epoch: int,
) -> Iterator[int]:
    buffer: deque[tuple[int, int]] = deque()  # (number, times it is still to leave)
    for left in itertools.count():
        for number in itertools.islice(arriving, buffer_size - len(buffer)):
            buffer.append((number, num_reuse))
        if not buffer:
            return
        if left % interval == 0:
            items = list(buffer)
            order = stream.generator(epoch, left // interval).permutation(len(items))
            buffer = deque(items[i] for i in order.tolist())
        number, times = buffer.popleft()
        if times > 1:
            buffer.append((number, times - 1))
        yield number


class _LocalShuffle(FlowIterator):
    """Over an input that is iterated: the order is computed for numbers, which the input names."""

    def __init__(self, flow: LocallyShuffleData, pass_: Pass):
        self._flow, self._pass = flow, pass_
        self._input = DrawnInput(flow.ds, pass_)
        self._begin(drawn=0)

    def _begin(self, drawn: int) -> None:
        self._order = self._flow.order(self._pass, self._arriving(drawn))
        self._left, self._times = 0, Counter[int]()
        self._replaying = False

    def _arriving(self, drawn: int) -> Iterator[int]:
        yield from range(drawn)
        if not self._replaying:  # else it is asked for more because the input had ended then
            yield from self._input.numbers()

    def __next__(self) -> Any:
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
        drawn = self._input.drawn_at(state["input"])
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
