"""What passes between a parent and a worker: small messages of fixed size, one channel for each.

Datapoints never pass here: a message says where in shared memory they are. A message is far
smaller than what a socket writes at once, so a worker killed at any moment leaves none in halves.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

# Flags of a task:
CAREFULLY = 1  # make datapoints one by one, saying which: a worker died of these
RESTORE = 2  # go to the position that stands in the input first
STACK = 4  # give one batch of all, if that is possible

# Flags of a reply:
KEPT = 1  # user code still holds arrays in the slot, which must not be written again
FAILED_TO_START = 2  # the object that was sent could not be loaded
STACKED = 4  # one batch of all datapoints, not these themselves


HELLO_SIZE = 4  # the first thing a worker hears: its number


class TaskMessage(NamedTuple):
    number: int
    flags: int
    epoch: int
    start: int
    length: int  # datapoints
    output: int  # slot
    input: int  # slot
    place: int  # of the input's description in its slot
    layout: int  # lengths of the description's parts
    values: int


class ReplyMessage(NamedTuple):
    number: int
    flags: int
    place: int
    layout: int
    values: int
    report: int  # its length; 0 if all went as usual
    used: int  # bytes of the slot
    busy: int  # nanoseconds
    waited: int


_TASK = struct.Struct("<QBqqqIIQQQ")
_REPLY = struct.Struct("<QBQQQQQqq")
TASK_SIZE, REPLY_SIZE = _TASK.size, _REPLY.size


def pack_task(message: TaskMessage) -> bytes:
    return _TASK.pack(*message)


def unpack_task(data: bytes) -> TaskMessage:
    return TaskMessage._make(_TASK.unpack(data))


def pack_reply(message: ReplyMessage) -> bytes:
    return _REPLY.pack(*message)


def unpack_replies(data: bytes | bytearray) -> list[ReplyMessage]:
    """All whole messages at the beginning of `data`."""
    whole = len(data) // REPLY_SIZE * REPLY_SIZE
    return [ReplyMessage._make(fields) for fields in _REPLY.iter_unpack(memoryview(data)[:whole])]
