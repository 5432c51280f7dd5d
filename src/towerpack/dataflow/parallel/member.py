"""A worker process as its pool sees it: the process, its channel, and what it was asked for."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence

from towerpack.core import launcher
from towerpack.dataflow.parallel.messages import (
    HELLO_SIZE,
    REPLY_SIZE,
    ReplyMessage,
    TaskMessage,
    pack_task,
    unpack_replies,
)
from towerpack.dataflow.parallel.tasks import Task
from towerpack.dataflow.parallel.work import Work
from towerpack.dataflow.parallel.worker import ENTRY

RECEIVE_BYTES = 1 << 14


class Member:
    """One worker of a pool."""

    def __init__(self, number: int, work: Work, packed: int | None, memory: int, start_method: str):
        self.number = number
        self.channel, theirs = socket.socketpair()
        launcher.keep_from_forks(self.channel)
        try:
            descriptors = [theirs.fileno(), memory]
            self.child = launcher.launch(work, packed, ENTRY, descriptors, start_method)
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()
        self._write(number.to_bytes(HELLO_SIZE, "little"))
        self._received = bytearray()
        self.tasks: deque[tuple[int, Task]] = deque()  # by number, oldest first
        self.waited = 0.0  # seconds that the consumer has waited for its oldest task
        self.stopped = 0.0  # seconds of them that it was seen stopped
        self.position: str | None = None  # of a stream: JSON of where it is after its last reply
        self.snapshot: list[list[int]] | None = None
        self.busy = self.idle = 0  # nanoseconds
        self.datapoints = self.memory = 0

    def take_over(self, other: Member) -> None:
        """Goes on where another ended: the same tasks, the same accounts."""
        self.tasks, self.position = other.tasks, other.position
        self.busy, self.idle, self.datapoints = other.busy, other.idle, other.datapoints

    def send(self, message: TaskMessage) -> None:
        self._write(pack_task(message))

    def _write(self, data: bytes) -> None:
        try:
            self.channel.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has died, which the pool sees, and sends its tasks to another

    def receive(self) -> tuple[Sequence[ReplyMessage], bool]:
        """The replies that are there, and whether the worker's end is still open."""
        try:
            # Once: there are never more replies than tasks, which are few.
            data = self.channel.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return (), True
        except ConnectionResetError:
            data = b""
        self._received += data
        replies = unpack_replies(self._received)
        del self._received[: len(replies) * REPLY_SIZE]
        return replies, bool(data)

    def end(self, seconds: float) -> None:
        """Kills the worker unless it ends by itself in time, and forgets it."""
        self.channel.close()
        self.child.wait(seconds)
        self.child.kill()
        self.child.wait(EXIT_SECONDS)
        self.child.close()


EXIT_SECONDS = 5.0  # for the kernel to end a killed process, on a machine that is out of breath
