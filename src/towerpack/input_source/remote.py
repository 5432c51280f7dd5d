"""Data from other processes and machines."""

from __future__ import annotations

from typing import Any

from towerpack.dataflow import CurveKeys, RemoteDataZMQ
from towerpack.input_source.dataset import dataflow_to_dataset
from towerpack.input_source.queue import QueueInput

DATAPOINTS_UNDER_WAY = 50  # as `RemoteDataZMQ`


class ZMQInput(QueueInput):
    """A `QueueInput` of what `send_dataflow_zmq` sends to an address, received by `RemoteDataZMQ`.

    Its promises are those of that flow: every batch once, in the order of its sender. Without
    `keys` it binds to this machine only. When all senders have ended for good, so does training. On
    several ranks each trains on what it has received: give each an address of its own, or let one
    sender bind and all ranks connect (`bind=False`).

    Args:
        end_point: 'tcp://127.0.0.1:5555' or 'ipc:///path'.
        hwm: how many batches are kept in memory on the way, besides the queue.
        bind: whether this end has the fixed address; the senders then connect to it.
    """

    def __init__(
        self,
        end_point: str,
        hwm: int = DATAPOINTS_UNDER_WAY,
        bind: bool = True,
        *,
        keys: CurveKeys | None = None,
    ):
        super().__init__(RemoteDataZMQ(end_point, hwm=hwm, bind=bind, keys=keys))

    def size(self) -> None:
        return None

    def to_dataset(self, input_signature: Any) -> Any:
        """The same batches as a `tf.data.Dataset`, instead of as an input source."""
        return dataflow_to_dataset(self.flow, list(input_signature))
