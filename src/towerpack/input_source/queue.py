"""Data ahead of need: a thread that keeps a queue of batches full."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.core import logger
from towerpack.dataflow import DataFromQueue, kept_workers
from towerpack.dataflow.base import DataFlowTerminated
from towerpack.dataflow.statistics import walk
from towerpack.input_source.as_tensor import as_tensor
from towerpack.input_source.base import FeedfreeInput
from towerpack.input_source.flow_input import FlowInput
from towerpack.input_source.journal import Mark
from towerpack.input_source.shelf import Shelf, Stack, stacked
from towerpack.input_source.signature import InputCheck
from towerpack.input_source.stream import FlowStream

QUEUE_SIZE = 50  # as tensorpack's users know it; batches, not datapoints
FILL_DECAY = 0.5
JOIN_SECONDS = 10.0
DRAIN_SECONDS = 0.01  # between two looks whether the thread that is told to stop has done so
HOST = "/cpu:0"  # queues are kept in host memory; without this, batches would go by the GPU
AT_ONCE = 16  # batches of one call to the flow at most: more would hardly be cheaper
AT_ONCE_SECONDS = 0.005  # of such a call at most, for steps may wait for the first of its batches
NOBODY = sys.maxsize  # a number of batches that is never reached: nobody waits


class QueueInput(FlowInput, FeedfreeInput):
    """Iterates a flow for ever in a thread, into a queue from which the graph takes its batches.

    In order, every datapoint once; epoch after epoch of the flow. The step never waits while the
    flow is fast enough: `QueueInput/queue_size`, logged every epoch, is near 0 when the flow is the
    bottleneck. An exception of the flow ends training with that exception, after what came before
    it. What the flow's own workers have made stays where it is, in shared memory, until its step is
    over, as long as that is not too much; other arrays are copied, and may be changed after that.

    The position (`state`) follows the batches that were taken, whatever was prefetched. It is as
    exact as the flow's own; only a `RemoteDataZMQ`, which cannot go back, goes on where it was.

    Args:
        queue: a TensorFlow queue to be used instead of a new one, with a component for each input.
        queue_size: how many batches are kept ready.
    """

    def __init__(self, ds: Any, queue: Any = None, *, queue_size: int = QUEUE_SIZE):
        if queue_size < 1:
            raise ValueError(f"expected a positive queue_size, received {queue_size}")
        self.queue_size = queue_size
        self._queue = self._own_queue = queue
        self._thread: threading.Thread | None = None
        super().__init__(ds)

    def _clear(self) -> None:
        super()._clear()
        self._stop = threading.Event()
        self._fill = 0.0
        self._wanted = NOBODY
        self._news = threading.Condition()
        self._shelf: Shelf | None = None  # where batches wait, once somebody has taken some
        self._queued = self._begin.number  # the first batch that has not gone into the queue
        self._place = threading.Lock()  # held to choose between the two
        self._at_once = 2  # how many batches are asked of the flow in one call, if it can do so

    def setup(self, signature: Any) -> None:
        super().setup(signature)
        if self._own_queue is None:
            with tf.init_scope(), tf.device(HOST):
                self._queue = self._make_queue()
        if len(self._queue.dtypes) != len(self.signature):
            raise ValueError(
                f"expected a queue of {len(self.signature)} components, as the model has inputs, "
                f"received one of {len(self._queue.dtypes)}"
            )

    def _make_queue(self) -> Any:
        return tf.queue.FIFOQueue(
            self.queue_size, [spec.dtype for spec in self.signature], name="input_queue"
        )

    def reserve(self, batches: int) -> None:
        """Enlarges the queue so that it does not run dry while as many batches are taken."""
        self.queue_size = max(self.queue_size, batches * 3 // 2 * self.datapoints_per_batch)

    def start(self) -> None:
        if self._queue is None or not self.signature:
            raise RuntimeError("expected setup(signature) before start()")
        if self._thread is None and not self._ended:
            self._thread = threading.Thread(
                target=self._feed, args=[self._stop], name=type(self).__name__, daemon=True
            )
            self._thread.start()

    def _started(self) -> bool:
        return self._thread is not None

    def get_input_tensors(self) -> list[Any]:
        tensors = self._listed(self._dequeue())
        # The queue knows no shapes; what was enqueued has been checked against the signature.
        return [
            tf.ensure_shape(tensor, shape)
            for tensor, shape in zip(tensors, self._shapes(), strict=True)
        ]

    def _shapes(self) -> list[Any]:
        if self._own_queue is not None:  # others may put what they like into it
            return [spec.shape for spec in self.signature]
        return super()._shapes()

    def _dequeue(self) -> Any:
        return self._queue.dequeue()

    @staticmethod
    def _listed(tensors: Any) -> list[Any]:
        """A queue of one component gives it by itself."""
        return list(tensors) if isinstance(tensors, list | tuple) else [tensors]

    def uniform(self, limit: int, taken: int) -> int:
        ready = super().uniform(limit, taken)
        if self._shelf is None:
            return ready
        # Not over the end of a block, so that nothing has to be copied.
        ahead = self._queued - taken
        return min(ready, ahead if ahead > 0 else self._shelf.in_line())

    def take(self, count: int, taken: int, rows: int) -> Stack | None:
        """From the first call on, batches no longer go by the queue but wait stacked.

        To put a batch into a queue costs 50 microseconds, ten times as much as to copy a small one.
        """
        if self.datapoints_per_batch > 1 or self._own_queue is not None:
            return None
        with self._place:
            if self._shelf is None:
                # One stack fills while one is worked on.
                self._shelf = Shelf(rows, room=max(self.queue_size, 2 * rows))
        in_queue = self._queued - taken
        if in_queue <= 0:
            self._queued = taken + count
            return self._shelf.take(count)
        batches = [self._listed(self._dequeue()) for _ in range(min(count, in_queue))]
        batches = [[tensor.numpy() for tensor in batch] for batch in batches]
        return stacked(batches + [self._shelf.pop() for _ in range(count - in_queue)], rows)

    def offer(self, count: int, taken: int) -> int:
        if self._shelf is None:
            return count
        # More than the queue holds would wait for steps, which wait for this call.
        count = min(count, self.queue_size)
        with tf.device(HOST):
            while self._queued < taken + count:
                self._enqueue(self._shelf.pop())
                self._queued += 1
        return count

    def _wait_for(self, target: int, timeout: float | None) -> None:
        if self._thread is None:
            raise RuntimeError("expected start() before wait(): no data would ever come")
        journal = self._journal
        room = self.queue_size if self._shelf is None else self._shelf.room
        target = min(target, journal.taken + room)
        with self._news:
            # The other thread counts first and then looks who waits; here it is the other way
            # round. So one of the two sees the other.
            self._wanted = target
            try:
                self._news.wait_for(lambda: self._ended or journal.count >= target, timeout)
            finally:
                self._wanted = NOBODY

    def reset_state(self) -> None:
        if self._thread is not None:
            self._halt()
            self._begin_again(Mark(0, {"epoch": 0}, 0))

    def refill_queue(self) -> None:
        """Drops what is queued, and goes on with the beginning of the next pass.

        No step may be running.
        """
        if self._thread is not None:
            taken = self._halt()
            found = self._journal.find(taken - 1) if taken else None
            epoch = found[0] + 1 if found else 0
            self._begin_again(Mark(taken, {"epoch": epoch}, 0))

    def _halt(self) -> int:
        """Stops the thread and empties the queue; the number of datapoints that were taken."""
        self.raise_failure()
        self._tell_to_stop()
        dropped = 0
        thread = self._thread
        while thread is not None and thread.is_alive():  # it may wait for room in the queue
            dropped += self._drain()
            thread.join(DRAIN_SECONDS)
        dropped += self._drain() + (len(self._shelf) if self._shelf else 0)
        self._thread = None
        return self._journal.count - dropped

    def _tell_to_stop(self) -> None:
        self._stop.set()
        if self._shelf is not None:
            self._shelf.close()

    def _drain(self) -> int:
        dropped = 0
        while int(self._queue.size()):
            self._queue.dequeue()
            dropped += 1
        return dropped

    def _begin_again(self, begin: Mark) -> None:
        self._begin = begin
        self._clear()
        self.start()

    def summaries(self) -> dict[str, float]:
        return {f"{type(self).__name__}/queue_size": self._fill}

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._tell_to_stop()
            for stage in walk(self.flow):
                if isinstance(stage, DataFromQueue):
                    stage.interrupt()  # its producer may have stopped
            # Cancels an enqueue that waits for room; the thread then sees that it has to stop.
            self._queue.close(cancel_pending_enqueues=True)
            thread.join(JOIN_SECONDS)
            if thread.is_alive():
                logger.warning(
                    "%s is still busy %g s after it was told to stop; its thread is left to end "
                    "by itself",
                    self.flow.label(),
                    JOIN_SECONDS,
                )

    def _feed(self, stop: threading.Event) -> None:
        try:
            with tf.device(HOST), kept_workers(self.flow):
                self._feed_until(stop)
        except BaseException as error:  # noqa: BLE001 (raised by the step)
            if not stop.is_set():
                # A remote flow that has ended for good is an end like any other.
                self._failure = None if isinstance(error, DataFlowTerminated) else error
                if self._shelf is None:
                    self._queue.close()  # what is queued is still trained on; then comes the end
        finally:
            with self._news:
                self._ended = True
                self._news.notify_all()

    def _feed_until(self, stop: threading.Event) -> None:
        stream, check = self._open()
        try:
            while not stop.is_set():
                if not self._feed_stack(stream, check):
                    self._feed_one(stream, check, stop)
        finally:
            stream.close()

    def _feed_one(self, stream: FlowStream, check: InputCheck, stop: threading.Event) -> None:
        datapoint = next(stream)
        if stop.is_set():
            return
        components = check(datapoint)
        self._note(stream, check)
        self._put(components)
        self._tell(stream, 1)

    def _feed_stack(self, stream: FlowStream, check: InputCheck) -> bool:
        """Some batches at once, straight to where steps read them; whether there were some."""
        if self._shelf is None or not self._at_once or not stream.stacks:
            return False
        # Like the last batch, they will be: the first of a pass always comes by itself.
        gap = self._shelf.gap(self._at_once)
        if gap is None:
            return False

        def accept(stack: Any) -> bool:
            components = check.stack(stack)
            if components is None:  # strings, say, that are longer than those of the last batch
                self._at_once = 0
                return False
            gap.fill(components)
            return True

        begun = time.perf_counter()
        count = stream.next_stack(gap.rows, gap.allocate, accept)
        if count:
            seconds = (time.perf_counter() - begun) / count * self._at_once
            if seconds > AT_ONCE_SECONDS:
                self._at_once = max(2, self._at_once // 2)
            elif seconds < AT_ONCE_SECONDS / 2:
                self._at_once = min(2 * self._at_once, AT_ONCE)
            self._note(stream, check, count)
            self._shelf.add(gap.block, count)
            self._tell(stream, count)
        return count > 0

    def _tell(self, stream: FlowStream, batches: int) -> None:
        """What was put, to those who wait for it."""
        if self._note_put(stream, batches):
            self._fill += (1 - FILL_DECAY) * (self._waiting() - self._fill)
        if self._journal.count >= self._wanted:
            with self._news:
                self._news.notify_all()

    def _waiting(self) -> int:
        """How many batches are ready."""
        return int(self._queue.size()) + (len(self._shelf) if self._shelf else 0)

    def _put(self, components: Sequence[np.ndarray]) -> None:
        with self._place:
            shelf = self._shelf
            self._queued += shelf is None
        if shelf is None:
            self._enqueue(components)
        else:
            shelf.put(components)

    def _enqueue(self, components: Sequence[np.ndarray]) -> None:
        # Of an array TensorFlow makes a copy, or does not, as its address happens to be.
        tensors = [
            as_tensor(x) if self._is_ours(x) else tf.convert_to_tensor(x) for x in components
        ]
        # `queue.enqueue` checks what was checked here, which takes twice as long as the copy.
        tf.raw_ops.QueueEnqueueV2(handle=self._queue.queue_ref, components=tensors, timeout_ms=-1)
