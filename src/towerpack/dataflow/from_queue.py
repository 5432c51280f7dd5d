"""A queue as a source."""

from __future__ import annotations

import functools
import inspect
import queue as queues
import weakref
from typing import Any

from towerpack.dataflow.base import DataFlow, DataFlowTerminated, FlowIterator, Pass, State

WAKE_SECONDS = 0.1  # how often a wait for the producer checks whether it was interrupted
# What a queue raises that its producer has closed; `Queue.shutdown` came with Python 3.13.
ENDS = tuple({EOFError, getattr(queues, "ShutDown", EOFError)})


class DataFromQueue(DataFlow):
    """The next item of a queue (`queue.Queue`, `multiprocessing.Queue`) each time: waits for it.

    The producer puts None when it stops, one for each iterator: that ends the pass, and later ones
    raise `DataFlowTerminated`. So does the queue's `shutdown`, where it has one. `interrupt` ends
    the wait for a producer that stopped without a word; a trainer calls it when it ends.

    All iterators take from the one queue: each item reaches one of them. There is no `len()`.
    Restoring a state expects the producer to start from its beginning, and drops the items that had
    been received.

    >>> import queue
    >>> q = queue.Queue(); q.put([1]); q.put([2]); q.put(None)
    >>> list(DataFromQueue(q))
    [[1], [2]]
    """

    def __init__(self, queue: Any):
        if not hasattr(queue, "get"):
            raise TypeError(f"expected a queue, received {queue!r} ({type(queue).__name__})")
        self.queue = queue
        self.ended = False  # whether the producer has stopped
        self._open: weakref.WeakSet[_Received] = weakref.WeakSet()

    def iterator(self, pass_: Pass) -> FlowIterator:
        iterator = _Received(self)
        self._open.add(iterator)
        return iterator

    def interrupt(self) -> None:
        """Lets all iterators that are open raise `DataFlowTerminated`, also one that waits."""
        for iterator in list(self._open):
            iterator.interrupted = True


class _Received(FlowIterator):
    def __init__(self, flow: DataFromQueue):
        self._flow, self._count, self._ended = flow, 0, False
        self.interrupted = flow.ended
        self._get = get = flow.queue.get
        parameters = inspect.signature(get).parameters.values()
        if any(p.name == "timeout" or p.kind is p.VAR_KEYWORD for p in parameters):
            self._get = functools.partial(get, timeout=WAKE_SECONDS)

    def __next__(self) -> Any:
        while not self._ended:
            if self.interrupted:
                raise DataFlowTerminated("the producer of a DataFromQueue has stopped")
            try:
                datapoint = self._get()
            except queues.Empty:
                continue
            except ENDS:
                datapoint = None
            if datapoint is not None:
                self._count += 1
                return datapoint
            self._ended = self._flow.ended = True
        raise StopIteration

    def state(self) -> State:
        return {"count": self._count}

    def restore(self, state: State) -> None:
        if state["count"] < self._count:
            raise ValueError(
                f"cannot go back from datapoint {self._count} to {state['count']} of a queue"
            )
        while self._count < state["count"]:
            if next(self, None) is None:
                raise ValueError(
                    f"cannot go to datapoint {state['count']}: the queue ended after {self._count}"
                )

    def close(self) -> None:
        self._ended = True
