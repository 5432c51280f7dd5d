"""Sending a flow to receivers on other machines or in other processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from towerpack.core import codec
from towerpack.dataflow.base import DataFlow, DataFlowTerminated, as_flow
from towerpack.dataflow.remote.curve_keys import CurveKeys
from towerpack.dataflow.remote.link import Endpoints
from towerpack.dataflow.remote.link_options import LinkCounts, LinkOptions
from towerpack.dataflow.remote.outbox import Outbox
from towerpack.dataflow.remote.pump import Pump

FORMATS = (None, "zmq_ops")  # one format; the second name is what old scripts pass


def send_dataflow_zmq(
    df: DataFlow | Iterable[Any],
    addr: str,
    hwm: int = 50,
    format: str | None = None,
    bind: bool = False,
    *,
    repeat: int | None = None,
    keys: CurveKeys | None = None,
    options: LinkOptions | None = None,
) -> LinkCounts:
    """Sends the datapoints of `df`, pass after pass, to the `RemoteDataZMQ`s at `addr`.

    Runs until it is interrupted; with `repeat=n` it returns after n passes, when every datapoint
    was acknowledged. Each datapoint reaches exactly one receiver: all of them, in order, the only
    one, or, with `bind=True`, whichever of several has room. Nothing is lost or repeated when the
    link breaks or a receiver is restarted (`towerpack.dataflow.remote` says exactly what holds). At
    most `hwm` datapoints are kept in memory for each receiver, so that one which does not consume
    holds up no other. It connects, reconnects and waits by itself; either end may be started first.

    Args:
        addr: 'tcp://host:port' or 'ipc:///path' of the end that binds. To bind to anything but
            loopback needs `keys`.
        format: None; 'zmq_ops' is accepted and means the same.
        bind: whether this end has the fixed address. Several senders connect to one receiver that
            binds, several receivers to one sender that binds.
        repeat: the number of passes over `df`; None for ever.

    Returns the counts of what happened.

    >>> import functools, threading
    >>> from towerpack.dataflow import DataFromList
    >>> from towerpack.dataflow.remote import RemoteDataZMQ
    >>> flow, address = DataFromList([[1], [2]], shuffle=False), "ipc://example.socket"
    >>> send = functools.partial(send_dataflow_zmq, flow, address, repeat=2)
    >>> sender = threading.Thread(target=send)
    >>> sender.start()  # in another process, or on another machine
    >>> datapoints = iter(RemoteDataZMQ(address))
    >>> [next(datapoints) for _ in range(4)]
    [[1], [2], [1], [2]]
    >>> datapoints.close()
    >>> sender.join()
    """
    if format not in FORMATS:
        raise ValueError(f"expected format None or 'zmq_ops', received {format!r}")
    if repeat is not None and repeat < 1:
        raise ValueError(f"expected repeat as a positive number or None, received {repeat!r}")
    options = options or LinkOptions()
    counts = LinkCounts()
    outbox = Outbox(hwm, options, counts)
    pump = Pump(outbox, Endpoints([addr], bind, hwm, options, keys), counts)
    try:
        for record in _records(as_flow(df), repeat, options):
            with pump.condition:
                pump.wait_until(lambda: outbox.has_room, outbox.describe_wait)
                outbox.add(record, codec.checksum_of(record))
                pump.wake()
        with pump.condition:
            outbox.end()
            pump.wake()
            pump.wait_until(lambda: outbox.finished, outbox.describe_wait)
    except BaseException as error:
        with pump.condition:
            outbox.leave(f"{type(error).__name__}: {error}")
        raise
    finally:
        pump.close()
    return counts


def _records(flow: DataFlow, repeat: int | None, options: LinkOptions) -> Iterator[bytes]:
    """The encoded datapoints of all passes."""
    index = passes = 0
    while repeat is None or passes < repeat:
        before = index
        with contextlib.closing(iter(flow)) as datapoints:
            try:
                for datapoint in datapoints:
                    yield _encode(datapoint, index, options)
                    index += 1
            except DataFlowTerminated:
                return  # a flow that cannot produce again ends the stream for good
        passes += 1
        if index == before:
            raise ValueError("the flow gave no datapoint in a whole pass; there is nothing to send")


def _encode(datapoint: Any, index: int, options: LinkOptions) -> bytes:
    try:
        record = codec.encode(datapoint)
    except codec.EncodeError as error:
        error.add_note(f"in datapoint {index} of the flow that is sent")
        raise
    if len(record) > options.max_message:
        raise ValueError(
            f"datapoint {index} takes {len(record)} bytes, more than max_message "
            f"({options.max_message}); pass options=LinkOptions(max_message=...) at both ends"
        )
    return record
