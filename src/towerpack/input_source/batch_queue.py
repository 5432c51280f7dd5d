"""Batches made by TensorFlow, of a queue of single datapoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from towerpack._tensorflow import tf
from towerpack.input_source.queue import QueueInput

DATAPOINTS_QUEUED = 3000  # as tensorpack's users know it


class BatchQueueInput(QueueInput):
    """As `QueueInput`, but the flow gives single datapoints, and the graph takes batches of them.

    A batch may be made of the end of one pass and the beginning of the next, so all are full, and
    `size()` is the length of the flow divided by `batch_size`, rounded down. Except for the first
    dimension the inputs need complete shapes. Each datapoint costs the thread some 50 microseconds:
    `BatchData` and a `QueueInput` are faster for small ones.

    Args:
        queue: a TensorFlow queue with shapes, to be used instead of a new one.
        queue_size: how many datapoints are kept ready.
    """

    def __init__(
        self, ds: Any, batch_size: int, queue: Any = None, *, queue_size: int = DATAPOINTS_QUEUED
    ):
        if batch_size < 1:
            raise ValueError(f"expected a positive batch_size, received {batch_size}")
        self.datapoints_per_batch = batch_size
        super().__init__(ds, queue, queue_size=max(queue_size, 2 * batch_size))

    def _rows(self) -> int:
        return 1  # the flow is not batched: its position does not depend on `batch_size`

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

    def _make_queue(self) -> Any:
        specs = self._datapoint_signature()
        return tf.queue.FIFOQueue(
            self.queue_size, [spec.dtype for spec in specs], [spec.shape for spec in specs]
        )

    def _dequeue(self) -> Any:
        return self._queue.dequeue_many(self.datapoints_per_batch)

    def uniform(self, limit: int, taken: int) -> int:
        return self.wait(limit, taken)

    def usual_shapes(self) -> list[tuple[int, ...]]:
        return [(self.datapoints_per_batch, *spec.shape[1:]) for spec in self.signature]
