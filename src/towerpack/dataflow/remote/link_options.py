"""What is the same at both ends of a link: sizes, patience, and the counts of what went wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

DEFAULT_MAX_MESSAGE = 256 << 20  # a batch of 256 float32 images of 224x224x3 takes 154 MB


@dataclass(frozen=True)
class LinkOptions:
    """Limits of a remote link; the defaults suit a data centre.

    Args:
        max_message: the largest datapoint in bytes. A peer that announces more is cut off before
            a byte of it is kept.
        heartbeat: seconds between two signs of life. A link without one for ten of them is
            dropped and made anew.
        peer_timeout: seconds after which the unacknowledged datapoints of a receiver that cannot
            be reached may go to another one that has room.
    """

    max_message: int = DEFAULT_MAX_MESSAGE
    heartbeat: float = 1.0
    peer_timeout: float = 30.0

    def __post_init__(self) -> None:
        for name in ("max_message", "heartbeat", "peer_timeout"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"expected a positive {name}, received {value!r}")


@dataclass
class LinkCounts:
    """What one end of a link has seen so far."""

    datapoints: int = 0  # delivered to the consumer, or acknowledged to the sender
    resends: int = 0  # requests to send again what was lost or damaged on the way
    duplicates: int = 0  # datapoints that came twice, the second time dropped
    damaged: int = 0  # datapoints whose checksum did not fit
    garbage: int = 0  # frames that are no message of the protocol
    strayed: int = 0  # messages for a lane that is not, or no longer
    overrun: int = 0  # datapoints beyond the credit that was given
    missed: int = 0  # acknowledged after the saved state that was restored; cannot come again
    refused: int = 0  # connections that failed the handshake: no ZeroMQ, or a wrong key
    disconnects: int = 0  # connections that ended, those with a frame over `max_message` included


class Peer(NamedTuple):
    """The other end of a connection: the number of our socket, and the address behind it.

    The address is empty for a socket that connects: it has one other end.
    """

    link: int
    route: bytes = b""
