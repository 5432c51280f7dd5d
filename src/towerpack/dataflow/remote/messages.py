"""The six messages between a sender and a receiver, and their bytes.

A message is one frame: a mark, a checksum, and a msgpack array of fixed types. `Data` is followed
by a second frame, the datapoint's record (`core.codec`), whose length and checksum it repeats, so
that neither can be taken for the other's. `unpack` refuses everything else.
"""

from __future__ import annotations

import struct
from typing import Annotated

import google_crc32c
import msgspec

MARK = b"TPR1"  # the protocol and its version
MAX_FRAME = 4096  # the longest of these messages, a `Leave` with its reason, is far shorter
MAX_REASON = 1000

_CHECKSUM = struct.Struct("<I")
_BODY = len(MARK) + _CHECKSUM.size

Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Name = Annotated[str, msgspec.Meta(max_length=64)]


class Claim(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a receiver that is gone had consumed, by the word of its successor's saved state."""

    receiver: Name
    lane: Number
    consumed: Number


class Status(
    msgspec.Struct, tag="status", frozen=True, array_like=True, forbid_unknown_fields=True
):
    """Sender to receiver: what I have sent to you so far; the receiver sees what it misses.

    `serial` counts the sender's statuses, so that an old one, overtaken, is known. `lane` is the
    number of the lane of `receiver`; both are empty where the sender does not know whom it speaks
    to. Whoever hears it may be another, who has taken the address. The datapoints below `base` were
    acknowledged, those below `sent` are under way. `missed` datapoints can never come again: a
    saved state was older than the last acknowledgement. `done`: the stream has ended, and all of it
    was acknowledged.
    """

    serial: Number
    stream: Name
    receiver: Name = ""
    lane: Number | None = None
    base: Number = 0
    sent: Number = 0
    missed: Number = 0
    done: bool = False


class Data(msgspec.Struct, tag="data", frozen=True, array_like=True, forbid_unknown_fields=True):
    """Sender to receiver: datapoint number `seq` of the lane, `index` of the stream."""

    stream: Name
    lane: Number
    seq: Number
    index: Number
    length: Number
    checksum: Number


class Leave(msgspec.Struct, tag="leave", frozen=True, array_like=True, forbid_unknown_fields=True):
    """Sender to receiver: I stop before the end; keep what you have."""

    stream: Name
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON)]


class Take(msgspec.Struct, tag="take", frozen=True, array_like=True, forbid_unknown_fields=True):
    """Receiver to sender: what I have, what I have consumed, and how much more I can hold.

    With an empty `stream` it only asks who is there. `consumed` and `received` count datapoints of
    the lane; what was consumed is acknowledged for good. `credit` datapoints may be under way
    beyond the consumed ones. `resend` asks for everything from `received` on. `claim` settles the
    affairs of a predecessor.
    """

    serial: Number
    receiver: Name
    stream: Name = ""
    lane: Number | None = None
    consumed: Number = 0
    received: Number = 0
    credit: Number = 0
    resend: bool = False
    claim: Claim | None = None


class Bye(msgspec.Struct, tag="bye", frozen=True, array_like=True, forbid_unknown_fields=True):
    """Receiver to sender: give what I have not consumed to others.

    `answer`: I close, and wait until you have heard this.
    """

    receiver: Name
    stream: Name
    lane: Number | None
    consumed: Number
    answer: bool = False


class Closed(
    msgspec.Struct, tag="closed", frozen=True, array_like=True, forbid_unknown_fields=True
):
    """Sender to receiver: your goodbye was heard."""

    receiver: Name
    stream: Name


Message = Status | Data | Leave | Take | Bye | Closed

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


class BadMessage(ValueError):
    """A frame that is no message of this protocol, or was damaged."""


def pack(message: Message) -> bytes:
    """The frame of a message.

    >>> unpack(pack(Leave("s", "tired")))
    Leave(stream='s', reason='tired')
    """
    body = _encoder.encode(message)
    return MARK + _CHECKSUM.pack(google_crc32c.value(body)) + body


def unpack(frame: bytes) -> Message:
    """The message, or BadMessage."""
    if len(frame) > MAX_FRAME or frame[: len(MARK)] != MARK:
        raise BadMessage(f"expected a frame that begins with {MARK!r}, received {frame[:16]!r}")
    body = frame[_BODY:]
    if frame[len(MARK) : _BODY] != _CHECKSUM.pack(google_crc32c.value(body)):
        raise BadMessage("the checksum does not fit")
    try:
        return _decoder.decode(body)
    except Exception as error:  # also ValueError: of text that is not UTF-8
        raise BadMessage(f"malformed message: {error}") from error
