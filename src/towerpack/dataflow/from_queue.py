"""A queue as a source."""

from __future__ import annotations

import queue as queues
from typing import Any

from towerpack.dataflow.base import DataFlow, FlowIterator, Pass, State

# `Queue.shutdown` came with Python 3.13; before it, a queue never ends.
_Shutdown: type[Exception] = getattr(queues, "ShutDown", queues.Empty)


class DataFromQueue(DataFlow):
    """Endlessly the next item of a queue (`queue.Queue`, `multiprocessing.Queue`): waits for it.

    All iterators take from the one queue: each item reaches one of them. There is no `len()`; a
    pass ends only when the queue is shut down. Restoring a state counts on the producer to
    start from its beginning, and drops as many items as had been received.

    >>> import queue
    >>> q = queue.Queue(); q.put([1])
    >>> next(iter(DataFromQueue(q)))
    [1]
    """

    def __init__(self, queue: Any):
        if not hasattr(queue, "get"):
            raise TypeError(f"expected a queue, received {queue!r} ({type(queue).__name__})")
        self.queue = queue

    def iterator(self, pass_: Pass) -> FlowIterator:
        return _Received(self.queue)


class _Received(FlowIterator):
    def __init__(self, queue: Any):
        self._queue, self._count = queue, 0

    def __next__(self) -> Any:
        if self._queue is None:
            raise StopIteration
        try:
            datapoint = self._queue.get()
        except _Shutdown:
            raise StopIteration from None
        self._count += 1
        return datapoint

    def state(self) -> State:
        return {"count": self._count}

    def restore(self, state: State) -> None:
        if state["count"] < self._count:
            raise ValueError(
                f"cannot go back from datapoint {self._count} to {state['count']} of a queue"
            )
        while self._count < state["count"]:
            self._queue.get()
            self._count += 1

    def close(self) -> None:
        self._queue = None
