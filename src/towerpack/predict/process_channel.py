"""Messages between a predictor's process and its parent: a length, then a record of the codec."""

from __future__ import annotations

import socket
import struct
from typing import Any

from towerpack.core import codec

_LENGTH = struct.Struct("<Q")


def send(channel: socket.socket, message: Any) -> None:
    parts = codec.encode_parts(message)
    channel.sendall(_LENGTH.pack(sum(memoryview(part).nbytes for part in parts)))
    for part in parts:
        channel.sendall(part)


def receive(channel: socket.socket) -> Any:
    """The next message; EOFError when the other end is closed."""
    (length,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size))
    return codec.decode(_exactly(channel, length))


def _exactly(channel: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, have = memoryview(data), 0
    while have < size:
        count = channel.recv_into(view[have:])
        if not count:
            raise EOFError("the other end of the channel is closed")
        have += count
    return data
