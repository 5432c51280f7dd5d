"""A queue as a source."""

from __future__ import annotations

import functools
import inspect
import queue as queues
import weakref
from typing import Any

from towerpack.dataflow.base import DataFlow, DataFlowTerminated
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.iterators import CountIterator, FlowIterator

WAKE_SECONDS = 0.1  # how often a wait for the producer checks whether it was interrupted
# What `get` raises on a queue that its producer has closed; `Queue.shutdown` needs Python 3.13.
ENDS = tuple({EOFError, getattr(queues, "ShutDown", EOFError)})


class DataFromQueue(DataFlow):
    """The items of a queue (`queue.Queue`, `multiprocessing.Queue`), waiting for each of them.

    When the producer stops, it puts one None for each iterator, which ends the epoch; iterators of
    later epochs raise `DataFlowTerminated`. The queue's `shutdown`, where it has one, does the
    same. `interrupt` ends the wait for a producer that stopped without notice; a trainer calls it
    when it ends.

    All iterators take from the one queue, so each item reaches only one of them. There is no
    `len()`. To restore a state, the producer must start from its beginning: the items that had been
    received are dropped.

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

    def sequential(self, epoch: Epoch) -> FlowIterator:
        iterator = _Received(self)
        self._open.add(iterator)
        return iterator

    def interrupt(self) -> None:
        """Makes all open iterators raise `DataFlowTerminated`, also one that waits."""
        for iterator in list(self._open):
            iterator.interrupted = True


class _Received(CountIterator):
    def __init__(self, flow: DataFromQueue):
        super().__init__()
        self._flow, self._ended = flow, False
        self.interrupted = flow.ended
        self._get = get = flow.queue.get
        parameters = inspect.signature(get).parameters.values()
        if any(p.name == "timeout" or p.kind is p.VAR_KEYWORD for p in parameters):
            self._get = functools.partial(get, timeout=WAKE_SECONDS)

    def draw(self) -> Any:
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

    def close(self) -> None:
        self._ended = True
