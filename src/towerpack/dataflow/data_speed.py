"""How fast a flow is, without anything else."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from typing import Any

from towerpack.core import logger
from towerpack.core.progress import Progress
from towerpack.dataflow.base import DataFlow, FlowIterator, Pass, ProxyDataFlow


class TestDataSpeed(ProxyDataFlow):
    """Measures how many datapoints per second a flow gives: `TestDataSpeed(ds).start()`.

    `start` draws `warmup` datapoints, then `size`, over several passes if need be, shows a progress
    bar, logs the rate and returns it. Iterated, it does that once before the first datapoint, and
    otherwise passes the flow on unchanged. To learn which stage is slow, take `bench(ds)`.

    >>> TestDataSpeed([[1], [2]], size=10).start() > 0
    True
    """

    __test__ = False  # pytest: the name begins with Test, but this is no test

    def __init__(self, ds: DataFlow | Iterable[Any], size: int = 5000, warmup: int = 0):
        super().__init__(ds)
        self.height = self.ds.height  # as if it were not there
        self.test_size, self.warmup = int(size), int(warmup)
        self._tested = False

    def start(self) -> float:
        """Draws the datapoints and returns how many came per second."""
        self._tested = True
        stream = endlessly(self.ds)
        try:
            for _ in itertools.islice(stream, self.warmup):
                pass
            done, begun = 0, time.perf_counter()
            with Progress(self.test_size, "TestDataSpeed") as bar:
                for _ in itertools.islice(stream, self.test_size):
                    done += 1
                    bar.update()
            rate = done / max(time.perf_counter() - begun, 1e-9)
        finally:
            stream.close()
        logger.info("TestDataSpeed: %d datapoints of %s, %.4g/s", done, self.ds.label(), rate)
        return rate

    start_test = start_testing = start  # as older scripts call it

    def iterator(self, pass_: Pass) -> FlowIterator:
        if not self._tested:
            self.start()
        return self.ds.iterator(pass_)


class _Endless(Iterator[Any]):
    """Epoch after epoch of a flow; an empty pass ends it."""

    def __init__(self, flow: DataFlow):
        self._flow, self._epoch = flow, 0
        self._input = flow.iterate(0)
        self._empty = True

    def __next__(self) -> Any:
        while True:
            try:
                datapoint = next(self._input)
                self._empty = False
                return datapoint
            except StopIteration:
                if self._empty:
                    raise
                self._input.close()
                self._epoch += 1
                self._input, self._empty = self._flow.iterate(self._epoch), True

    def close(self) -> None:
        self._input.close()


def endlessly(flow: DataFlow) -> _Endless:
    """Epoch after epoch of a flow, until `close()`."""
    return _Endless(flow)
