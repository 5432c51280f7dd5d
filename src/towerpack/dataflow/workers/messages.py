"""Messages between a pool and its workers: tasks, replies, and what a reply reports.

They pass through one socket for each worker. Datapoints never do: a message says where in shared
memory they are. All messages have one size, which is far smaller than what a socket writes at once,
so a worker that is killed at any moment never leaves half of one.
"""

from __future__ import annotations

import operator
import os
import pickle
import socket
import traceback
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

import cloudpickle

import towerpack
from towerpack.dataflow.parallel.work import Chunk
from towerpack.dataflow.workers.packing import Packed

MESSAGE_SIZE = 512


class TaskMessage(NamedTuple):
    number: int
    epoch: int
    start: int
    length: int  # datapoints
    output: int  # slot
    input: tuple[int, int, int] | None  # slot, place and size of a pickled `Packed`
    stack: bool = False  # make one batch of all, if that is possible
    restore: bool = False  # first go to the position that the input contains
    carefully: bool = False  # announce each datapoint: a worker died while it made these


class ReplyMessage(NamedTuple):
    number: int
    place: int  # of the pickled `Report` in the task's output slot
    size: int
    used: int  # bytes of the slot
    busy: int  # nanoseconds
    waited: int
    kept: bool  # user code still holds arrays in the slot, which must not be written again


M = TypeVar("M", TaskMessage, ReplyMessage)

# Messages and reports are pickled as tuples: looking up their classes takes ten times as long.


def send(channel: socket.socket, message: TaskMessage | ReplyMessage) -> None:
    pickled = pickle.dumps(tuple(message), 5)
    channel.sendall(pickled.ljust(MESSAGE_SIZE, b"\0"))  # pickle ignores the rest


def receive(channel: socket.socket, kind: type[M], flags: int = socket.MSG_WAITALL) -> M | None:
    """The next message; None if the other end is closed."""
    try:
        data = channel.recv(MESSAGE_SIZE, flags)
    except ConnectionResetError:
        return None
    return kind(*pickle.loads(data)) if data else None  # noqa: S301 (both ends are one program)


@dataclass
class Report:
    """What a worker reports about a task."""

    chunk: Chunk  # without its rows and its error
    packed: Packed  # the rows
    error: FrozenError | None = None
    statistics: list[list[int]] | None = None
    memory: int = 0  # the worker's own, in bytes

    def encoded(self) -> bytes:
        parts = _chunk_fields(self.chunk), tuple(self.packed), self.error, self.statistics
        return pickle.dumps((*parts, self.memory), 5)

    @classmethod
    def decoded(cls, parts: Any) -> Report:
        """From the tuple that `encoded` pickled."""
        chunk, packed, *others = parts
        return cls(Chunk(*chunk), Packed(*packed), *others)


_chunk_fields = operator.attrgetter(*(field.name for field in fields(Chunk)))


class WorkerError(RuntimeError):
    """An error in a worker whose own exception could not be sent. The message repeats its text."""


_PACKAGE = os.path.dirname(towerpack.__file__) + os.sep


@dataclass
class FrozenError:
    """An exception on its way from a worker to its consumer."""

    pickled: bytes | None  # None if it cannot be pickled
    text: str
    trace: str  # the worker's own traceback

    @classmethod
    def of(cls, error: BaseException) -> FrozenError:
        summary = traceback.TracebackException.from_exception(error)
        # The notes are part of the pickle, and the path through towerpack does not help the user.
        summary.__notes__ = None
        *path, last = summary.stack or [None]
        frames = [frame for frame in path if frame and not frame.filename.startswith(_PACKAGE)]
        summary.stack = traceback.StackSummary.from_list([*frames, last] if last else [])
        try:
            pickled = cloudpickle.dumps(error)
        except Exception:  # noqa: BLE001 (its text must do)
            pickled = None
        text = f"{type(error).__qualname__}: {error}"
        return cls(pickled, text, "".join(summary.format()).rstrip())

    def thaw(self, where: str) -> BaseException:
        """The exception, of its own type if possible, with the worker's traceback as a note."""
        error: Any = None
        if self.pickled is not None:
            try:
                error = pickle.loads(self.pickled)  # noqa: S301 (our own worker wrote it)
            except Exception:  # noqa: BLE001 (many can be pickled but not unpickled)
                error = None
        thawed: BaseException = (
            error if isinstance(error, BaseException) else WorkerError(self.text)
        )
        thawed.add_note(f"{where}; its traceback:\n{self.trace}")
        return thawed
