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
from towerpack.dataflow import RemoteDataZMQ, kept_workers
from towerpack.dataflow.base import DataFlow, DataFlowTerminated, FlowIterator, State, as_flow
from towerpack.dataflow.statistics import walk
from towerpack.input_source.base import EndOfData, FeedfreeInput
from towerpack.input_source.journal import Journal, Mark
from towerpack.input_source.signature import InputCheck

QUEUE_SIZE = 50  # as tensorpack's users know it; batches, not datapoints
FILL_DECAY = 0.5
MARK_SECONDS = 0.05  # between two looks at the flow's position, which may cost as much as a batch
JOIN_SECONDS = 10.0
DRAIN_SECONDS = 0.01  # between two looks whether the thread that is told to stop has done so
HOST = "/cpu:0"  # queues are kept in host memory; without this, batches would go by the GPU
NOBODY = sys.maxsize  # a number of batches that is never reached: nobody waits


class QueueInput(FeedfreeInput):
    """Iterates a flow for ever in a thread, into a queue from which the graph takes its batches.

    In order, every datapoint once; epoch after epoch of the flow. The step never waits while the
    flow is fast enough: `QueueInput/queue_size`, logged every epoch, is near 0 when the flow is the
    bottleneck. An exception of the flow ends training with that exception, after what came before
    it. The arrays of the flow are handed to TensorFlow as they are, which copies them once.

    The position (`state`) follows the batches that were taken, whatever was prefetched. It is as
    exact as the flow's own; only a `RemoteDataZMQ`, which cannot go back, goes on where it was.

    Args:
        queue: a TensorFlow queue to be used instead of a new one, with a component for each input.
        queue_size: how many batches are kept ready.
    """

    def __init__(self, ds: Any, queue: Any = None, *, queue_size: int = QUEUE_SIZE):
        if queue_size < 1:
            raise ValueError(f"expected a positive queue_size, received {queue_size}")
        self.flow: DataFlow = as_flow(ds)
        self.queue_size = queue_size
        self._queue = self._own_queue = queue
        self._thread: threading.Thread | None = None
        self._begin = Mark(0, {"epoch": 0}, 0)
        self._clear()

    def _clear(self) -> None:
        self._journal = Journal(self._begin)
        self._stop = threading.Event()
        self._ended = False
        self._failure: BaseException | None = None
        self._fill = 0.0
        self._wanted = NOBODY
        self._mark_due = 0.0
        self._news = threading.Condition()

    def setup(self, signature: Any) -> None:
        super().setup(signature)
        self.close()
        self._begin = self._begin._replace(number=0)
        self._clear()
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
        """Enlarges the queue so that it fills again while as many batches are worked on."""
        self.queue_size = max(self.queue_size, 2 * batches)

    def start(self) -> None:
        if self._queue is None or not self.signature:
            raise RuntimeError("expected setup(signature) before start()")
        if self._thread is None and not self._ended:
            self._thread = threading.Thread(
                target=self._feed, args=[self._stop], name="QueueInput", daemon=True
            )
            self._thread.start()

    def get_input_tensors(self) -> list[Any]:
        tensors = self._dequeue()
        tensors = tensors if isinstance(tensors, list | tuple) else [tensors]
        # The queue knows no shapes; what was enqueued has been checked against the signature.
        return [
            tf.ensure_shape(tensor, spec.shape)
            for tensor, spec in zip(tensors, self.signature, strict=True)
        ]

    def _dequeue(self) -> Any:
        return self._queue.dequeue()

    def size(self) -> int | None:
        try:
            return len(self.flow)
        except TypeError:
            return None

    def wait(self, limit: int, taken: int, timeout: float | None = None) -> int:
        journal = self._journal
        journal.note_taken(taken)
        target = taken + min(limit, self.queue_size)
        if journal.count < target and not self._ended:
            self._wait_for(target, timeout)
        ended = self._ended  # looked at before the count, which is final then
        ready = min(journal.count - taken, limit)
        if ready <= 0 and ended:
            self.raise_failure()
            raise EndOfData(f"{self.flow.label()} has ended after {taken} batches")
        return max(ready, 0)

    def _wait_for(self, target: int, timeout: float | None) -> None:
        if self._thread is None:
            raise RuntimeError("expected start() before wait(): no data would ever come")
        begin = time.perf_counter()
        with self._news:
            # The other thread counts first and then looks who waits; here it is the other way
            # round. So one of the two sees the other.
            self._wanted = target
            try:
                self._news.wait_for(lambda: self._ended or self._journal.count >= target, timeout)
            finally:
                self._wanted = NOBODY
        self.waited += time.perf_counter() - begin

    def uniform(self, limit: int, taken: int) -> int:
        ready = self.wait(limit, taken)
        return min(ready, self._journal.usual_until(taken) - taken)

    def usual_shapes(self) -> list[tuple[int, ...]] | None:
        form = self._journal.usual()
        return None if form is None else [shape for _, shape in form]

    def state(self, taken: int) -> State:
        mark = self._journal.mark_before(taken)
        if _goes_back(self.flow):
            return mark.state(taken)
        return mark._replace(skip=0).state(mark.number)

    def restore(self, state: State | None) -> None:
        if self._thread is not None:
            raise RuntimeError("expected restore() before start()")
        if state is not None:
            self._begin = Mark.of_state(state)
            self._journal = Journal(self._begin)

    def reset_state(self) -> None:
        if self._thread is not None:
            taken = self._halt()
            self._begin_again(Mark(taken, {"epoch": 0}, 0))

    def refill_queue(self) -> None:
        """Drops what is queued, and goes on with the beginning of the next pass."""
        if self._thread is not None:
            taken = self._halt()
            found = self._journal.find(taken - 1) if taken else None
            epoch = found[0] + 1 if found else 0
            self._begin_again(Mark(taken, {"epoch": epoch}, 0))

    def _halt(self) -> int:
        """Stops the thread and empties the queue; the number of batches that were taken.

        No step may be running.
        """
        self.raise_failure()
        self._stop.set()
        dropped = 0
        thread = self._thread
        while thread is not None and thread.is_alive():  # it may wait for room in the queue
            dropped += self._drain()
            thread.join(DRAIN_SECONDS)
        dropped += self._drain()
        self._thread = None
        return self._journal.count - dropped

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

    def position(self, batch: int) -> str:
        found = self._journal.find(batch)
        if found is None:
            return super().position(batch)
        epoch, number = found
        return f"batch {number} of pass {epoch} of {self.flow.label()}, both counted from 0"

    def summaries(self) -> dict[str, float]:
        return {"QueueInput/queue_size": self._fill}

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
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
                self._feed_passes(InputCheck(self.signature, self.flow.label()), stop)
        except BaseException as error:  # noqa: BLE001 (raised by the step)
            if not stop.is_set():
                # A remote flow that has ended for good is an end like any other.
                self._failure = None if isinstance(error, DataFlowTerminated) else error
                self._queue.close()  # what is queued is still trained on; then comes the end
        finally:
            with self._news:
                self._ended = True
                self._news.notify_all()

    def _feed_passes(self, check: InputCheck, stop: threading.Event) -> None:
        """Pass after pass, from where it is to begin until it is told to stop."""
        begin = self._begin
        epoch, batch, skip = begin.flow["epoch"], begin.batch, begin.skip
        position = begin.flow if "at" in begin.flow else None
        while not stop.is_set():
            empty = position is None
            with self.flow.iterate(epoch) as datapoints:
                if position is not None:
                    datapoints.restore(position)
                    position = None
                while skip and not stop.is_set():
                    if next(datapoints, None) is None:
                        break
                    skip, batch, empty = skip - 1, batch + 1, False
                if not skip and self._feed_pass(datapoints, check, epoch, batch, stop):
                    empty = False
            if empty and not stop.is_set():
                raise ValueError(
                    f"{self.flow.label()} produced nothing in a whole pass; is it empty?"
                )
            epoch, batch = epoch + 1, 0

    def _feed_pass(
        self,
        datapoints: FlowIterator,
        check: InputCheck,
        epoch: int,
        batch: int,
        stop: threading.Event,
    ) -> int:
        """What is left of a pass, whose next batch is its `batch`-th; returns how many came."""
        journal = self._journal
        journal.note_pass(epoch, batch)
        first = journal.count
        for datapoint in datapoints:
            if stop.is_set():
                break
            components = check(datapoint)
            journal.note_form(check.form)
            self._enqueue(components)
            journal.count += 1
            if journal.count >= self._wanted:
                with self._news:
                    self._news.notify_all()
            if time.monotonic() >= self._mark_due:
                journal.mark(datapoints.state(), batch + journal.count - first)
                self._fill += (1 - FILL_DECAY) * (int(self._queue.size()) - self._fill)
                self._mark_due = time.monotonic() + MARK_SECONDS
            del datapoint, components  # a slot of shared memory is free as soon as it is copied
        return journal.count - first

    def _enqueue(self, components: Sequence[np.ndarray]) -> None:
        # `queue.enqueue` checks what was checked here, which takes twice as long as the copy.
        tf.raw_ops.QueueEnqueueV2(
            handle=self._queue.queue_ref, components=list(components), timeout_ms=-1
        )


def _goes_back(flow: DataFlow) -> bool:
    """Whether a flow can be put back to where it was; what was received from afar is gone."""
    return not any(isinstance(stage, RemoteDataZMQ) for stage in walk(flow))
