"""Data ahead of need: a thread that keeps a buffer of batches full."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.core import logger
from towerpack.dataflow import kept_workers
from towerpack.dataflow.base import DataFlowTerminated
from towerpack.dataflow.statistics import walk
from towerpack.input_source.base import FeedfreeInput
from towerpack.input_source.buffer import Batches, Buffer, aligned_empty
from towerpack.input_source.flow_input import FlowInput
from towerpack.input_source.position import FlowStream, Mark
from towerpack.input_source.signature import InputCheck

QUEUE_SIZE = 50  # as tensorpack's users know it; batches, not datapoints
DATAPOINTS_QUEUED = 3000  # likewise, of a BatchQueueInput
FILL_DECAY = 0.5
JOIN_SECONDS = 10.0
HOST = "/cpu:0"  # without this, what is enqueued would go by the GPU


class QueueInput(FlowInput, FeedfreeInput):
    """Iterates a flow for ever in a thread, and keeps its next batches ready.

    In order, every datapoint once; epoch after epoch of the flow. The step never waits while the
    flow is fast enough: `QueueInput/queue_size`, logged every epoch, is near 0 when the flow is the
    bottleneck. An exception of the flow ends training with that exception, after what came before
    it. What the flow's own workers have made stays where it is, in shared memory, until its step is
    over, as long as batches are not stacked; other arrays are copied, and may be changed after
    that.

    The position (`state`) follows the batches that were handed out, whatever was prefetched. It is
    as exact as that of the flow. Only a `RemoteDataZMQ`, which cannot go back, continues where it
    was.

    Args:
        queue: a TensorFlow queue to keep the batches in, with a component for each input.
        queue_size: how many batches are kept ready.
    """

    def __init__(self, ds: Any, queue: Any = None, *, queue_size: int = QUEUE_SIZE):
        if queue_size < 1:
            raise ValueError(f"expected a positive queue_size, received {queue_size}")
        self.queue_size = queue_size
        self._queue = queue
        self._thread: threading.Thread | None = None
        super().__init__(ds)

    def _clear(self) -> None:
        super()._clear()
        self._stop = threading.Event()
        self._fill = 0.0

    def _new_buffer(self) -> Buffer:
        if self._queue is not None:
            return QueueBuffer(self._queue)
        return Buffer(max(self.queue_size, len(self.devices)))

    def _running(self) -> bool:
        return self._thread is not None

    def setup(self, signature: Any) -> None:
        super().setup(signature)
        if self._queue is not None and len(self._queue.dtypes) != len(self.signature):
            raise ValueError(
                f"expected a queue of {len(self.signature)} components, as the model has inputs, "
                f"received one of {len(self._queue.dtypes)}"
            )

    def specs(self) -> list[Any]:
        # Others may put what they like into their queue.
        return super().specs() if self._queue is None else list(self.signature)

    def start(self) -> None:
        if not self.signature:
            raise RuntimeError("expected setup(signature) before start()")
        if self._thread is None and not self._buffer.ended:
            self._thread = threading.Thread(
                target=self._fill_buffer,
                args=[self._buffer, self._stop],
                name=type(self).__name__,
                daemon=True,
            )
            self._thread.start()

    def refill_queue(self) -> None:
        """Drops what is queued, and continues with the beginning of the next epoch.

        No step may be running.
        """
        if self._thread is not None:
            self.raise_failure()
            self.close()
            epoch = 0
            if self.delivered:
                last = self.delivered * self.datapoints_per_batch - 1
                epoch = self._part.positions.of(last)[0] + 1
            self._start_again(Mark(0, {"epoch": epoch}, 0))

    def summaries(self) -> dict[str, float]:
        return {f"{type(self).__name__}/queue_size": self._fill}

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            self._buffer.close()
            for stage in walk(self.flow):
                stage.interrupt()  # it may wait for a producer that has stopped
            thread.join(JOIN_SECONDS)
            self._buffer.close()  # what the thread still put into a queue of the user's goes, too
            if thread.is_alive():
                logger.warning(
                    "%s is still busy %g s after it was asked to stop; its thread ends by itself "
                    "later",
                    self.flow.label(),
                    JOIN_SECONDS,
                )

    def _fill_buffer(self, buffer: Buffer, stop: threading.Event) -> None:
        try:
            with tf.device(HOST), kept_workers(self.own_flow):
                stream, check = self._open()
                try:
                    while not stop.is_set():
                        if not self._read_stack(stream, check):
                            self._read(stream, check)
                finally:
                    stream.close()
        except BaseException as error:  # noqa: BLE001 (raised by the step)
            if not stop.is_set() and not isinstance(error, DataFlowTerminated):
                self._failure = error  # a remote flow that has ended for good is no failure
        finally:
            buffer.end()

    def _read_stack(self, stream: FlowStream, check: InputCheck) -> bool:
        """Reads several batches at once into a stack, if steps use one; whether there were any."""
        wanted = self._buffer.space()
        found = stream.next_stack(wanted) if wanted > 1 else None
        if found is None:
            return False
        stack, count = found
        components = check.stack(stack)
        self._note(stream, count)
        if components is not None:
            self._buffer.put_stack(components, count, owned=all(map(stream.owns, components)))
        else:  # strings, say, that are longer than those of the last batch
            for number in range(count):
                if isinstance(stack, dict):
                    batch: Any = {name: column[number] for name, column in stack.items()}
                else:
                    batch = [column[number] for column in stack]
                self._buffer.put(check(batch))
        self._note_read(stream, count)
        return True

    def _note_read(self, stream: FlowStream, count: int) -> bool:
        due = super()._note_read(stream, count)
        if due:
            self._fill += (1 - FILL_DECAY) * (self._buffer.count - self._fill)
        return due


class BatchQueueInput(QueueInput):
    """As `QueueInput`, but the flow gives single datapoints, of which batches are made here.

    A batch may be made of the end of one epoch and the beginning of the next, so all are full, and
    `size()` is the length of the flow divided by `batch_size`, rounded down. Except for the first
    dimension the inputs need complete shapes. `BatchData` and a `QueueInput` are faster for small
    datapoints.

    Args:
        queue: a TensorFlow queue of single datapoints to keep them in, with known shapes.
        queue_size: how many datapoints are kept ready.
    """

    def __init__(
        self, ds: Any, batch_size: int, queue: Any = None, *, queue_size: int = DATAPOINTS_QUEUED
    ):
        if batch_size < 1:
            raise ValueError(f"expected a positive batch_size, received {batch_size}")
        self.datapoints_per_batch = batch_size
        super().__init__(ds, queue, queue_size=max(queue_size // batch_size, 2))

    def _new_buffer(self) -> Buffer:
        if self._queue is not None:
            return QueueBuffer(self._queue, self.datapoints_per_batch)
        return super()._new_buffer()

    def _rows(self) -> int | None:
        return 1  # the flow is not batched: its position does not depend on `batch_size`

    def specs(self) -> list[Any]:
        size = self.datapoints_per_batch
        return [tf.TensorSpec([size, *s.shape[1:]], s.dtype, s.name) for s in self.signature]

    def _datapoint_signature(self) -> Sequence[Any]:
        return [tf.TensorSpec(spec.shape[1:], spec.dtype, spec.name) for spec in self.signature]

    def setup(self, signature: Any) -> None:
        for spec in signature:
            batched = spec.shape.rank is not None and spec.shape.rank > 0
            if not batched or not spec.shape[1:].is_fully_defined():
                raise ValueError(
                    f"expected inputs of known shape but for the first dimension, received "
                    f"{spec.name!r} of shape {spec.shape}; use BatchData and a QueueInput instead"
                )
            if spec.shape[0] not in (None, self.datapoints_per_batch):
                raise ValueError(
                    f"expected {spec.name!r} to have batches of {self.datapoints_per_batch}, "
                    f"received the shape {spec.shape}"
                )
        super().setup(signature)

    def _read_stack(self, stream: FlowStream, check: InputCheck) -> bool:
        return False

    def _read(self, stream: FlowStream, check: InputCheck) -> None:
        arrays: list[np.ndarray] = []
        for row in range(self.datapoints_per_batch):
            components = check(next(stream))
            self._note(stream, 1)
            if not arrays:
                size = self.datapoints_per_batch
                arrays = [aligned_empty((size, *x.shape), x.dtype) for x in components]
            for number, (array, component) in enumerate(zip(arrays, components, strict=True)):
                if array.dtype != component.dtype:  # strings, which differ in length
                    wider = np.result_type(array.dtype, component.dtype)
                    array = arrays[number] = array.astype(wider)
                array[row] = component
            if row + 1 < self.datapoints_per_batch:
                self._note_read(stream, 1)
        self._buffer.put(arrays, keep=True)
        self._note_read(stream, 1)


class QueueBuffer(Buffer):
    """Batches in a TensorFlow queue of the user's, which may also read it elsewhere.

    With `datapoints`, the queue has single datapoints, and this is their number in a batch.
    """

    def __init__(self, queue: Any, datapoints: int | None = None):
        super().__init__(1)
        self._queue, self._datapoints = queue, datapoints

    @property
    def room(self) -> int:
        return 1 << 62  # the queue knows how much it holds

    def put(self, batch: Sequence[np.ndarray], keep: bool = False) -> None:
        tensors = [tf.constant(array) for array in batch]
        with self._change:
            if self._closed:
                return
        if self._datapoints is None:
            self._queue.enqueue(tensors)
        else:
            self._queue.enqueue_many(tensors)
        with self._change:
            self.count += 1
            self._change.notify_all()

    def space(self) -> int:
        return 0

    def take(self, limit: int, group: int, rows: int) -> Batches:
        batches = []
        for _ in range(group):
            found = self._queue.dequeue_many(self._datapoints) if self._datapoints else None
            found = self._queue.dequeue() if found is None else found
            # A queue of one component gives it by itself.
            batches.append(list(found) if isinstance(found, list | tuple) else [found])
        with self._change:
            self.count -= group
        return Batches(batches, 0, group, stacked=False)

    def close(self) -> None:
        super().close()
        while int(self._queue.size()):  # makes room for an enqueue that waits: then it ends
            self._queue.dequeue()
