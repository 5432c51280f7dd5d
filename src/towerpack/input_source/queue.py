"""Data ahead of need: a thread that keeps a queue of batches full."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from towerpack._tensorflow import tf
from towerpack.dataflow import kept_workers
from towerpack.dataflow.base import DataFlow, FlowIterator, as_flow
from towerpack.input_source.base import InputSource
from towerpack.input_source.signature import as_inputs

QUEUE_SIZE = 50  # as tensorpack's users know it; batches, not datapoints
FILL_DECAY = 0.5
JOIN_SECONDS = 10.0


class QueueInput(InputSource):
    """Iterates a flow for ever in a thread, into a queue from which the graph takes its batches.

    In order, every datapoint once; epoch after epoch of the flow. The step never waits while the
    flow is fast enough: `QueueInput/queue_size`, logged every epoch, is near 0 when the flow is the
    bottleneck. An exception of the flow ends training with that exception.
    """

    def __init__(self, ds: Any, queue_size: int = QUEUE_SIZE):
        self.flow: DataFlow = as_flow(ds)
        self.queue_size = queue_size
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._fill = 0.0

    def setup(self, signature: Any) -> None:
        super().setup(signature)
        self._queue = tf.queue.FIFOQueue(
            self.queue_size, [spec.dtype for spec in self.signature], name="input_queue"
        )

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._feed, name="QueueInput", daemon=True)
            self._thread.start()

    def get_input_tensors(self) -> list[Any]:
        tensors = self._queue.dequeue()
        tensors = tensors if isinstance(tensors, list | tuple) else [tensors]
        # The queue knows no shapes; what was enqueued has been checked against the signature.
        return [
            tf.ensure_shape(tensor, spec.shape)
            for tensor, spec in zip(tensors, self.signature, strict=True)
        ]

    def size(self) -> int | None:
        try:
            return len(self.flow)
        except TypeError:
            return None

    def summaries(self) -> dict[str, float]:
        return {"QueueInput/queue_size": self._fill}

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            # Cancels an enqueue that waits for room; the thread then sees that it has to stop.
            self._queue.close(cancel_pending_enqueues=True)
            self._thread.join(JOIN_SECONDS)
            self._thread = None

    def _feed(self) -> None:
        name = type(self.flow).__name__
        try:
            with kept_workers(self.flow):
                epoch = 0
                while not self._stop.is_set():
                    with self.flow.iterate(epoch) as datapoints:
                        self._feed_pass(datapoints, name)
                    epoch += 1
        except BaseException as error:  # noqa: BLE001 (raised by the step)
            if not self._stop.is_set():
                self._failure = error
        finally:
            # What is queued is still trained on; after it the step sees the end.
            with contextlib.suppress(tf.errors.CancelledError):  # closed already, by close()
                self._queue.close()

    def _feed_pass(self, datapoints: FlowIterator, name: str) -> None:
        empty = True
        for datapoint in datapoints:
            empty = False
            if self._stop.is_set():
                return
            self._queue.enqueue(as_inputs(datapoint, self.signature, name))
            self._fill += (1 - FILL_DECAY) * (int(self._queue.size()) - self._fill)
        if empty:
            raise ValueError(f"{name} produced nothing in a whole pass; is it empty?")
