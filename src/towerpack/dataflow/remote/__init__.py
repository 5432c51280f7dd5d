"""Flows between processes and machines: `send_dataflow_zmq` and `RemoteDataZMQ`.

**What holds.** Every datapoint of a sender's stream reaches one consumer, exactly once, in the
stream's order if there is one receiver; with several, each gets a part, in order.

- The link is cut, stalls, or damages bytes: exactly once; it goes on by itself when the link does.
- A process is stopped, or slow: exactly once; the others go on; memory is bounded at both ends.
- A receiver closes its iterator: exactly once; the rest goes to the next iterator or receiver.
- A receiver is killed: nothing is lost. What it has not acknowledged goes to the next one. A
  datapoint is acknowledged after the consumer has come for the next one, within a heartbeat. So the
  few that it consumed last come again, unless its successor restores a state that was saved with
  the results: then exactly once.
- A receiver cannot be reached for longer than `peer_timeout`, and another can: the other gets what
  it has not acknowledged. If it is alive after all, it drops what it still holds; what it consumed
  meanwhile may have come twice, and is counted. With nobody else there, nothing is given away.
- A sender is killed: what has arrived is consumed, once. Started anew, it begins a new stream.
- A sender's flow raises, or is interrupted: the same, and receivers log why.
- The stream ends (`repeat=`): the sender returns when all of it was acknowledged, and receivers
  raise `DataFlowTerminated`.

**Sockets.** The end that binds has a ROUTER, the end that connects a DEALER. Either may send: many
senders connect to a receiver that binds, many receivers to a sender that binds.

**Messages** (`messages`). A sender has a *stream* (a random name, an index for each datapoint); a
receiver has a random name too. What a sender gives to one receiver is a *lane*: datapoints numbered
from 0, which are sent, resent and acknowledged in order.

- `Status` (sender): who I am; your lane, how much of it was sent. With every heartbeat.
- `Take` (receiver): how much of my lane I have received and consumed, and my credit: how many
  datapoints may be under way beyond the consumed ones. With every heartbeat, and when there is
  progress; a request to send again is part of it.
- `Data` (sender): a datapoint, its number on the lane, its index in the stream.
- `Bye` (receiver), `Closed` (sender): the end of a lane, and that it was heard.
- `Leave` (sender): the stream stops before its end.

Statuses and takes say how things stand, not what changed: each may be lost, or come twice or late.
Whoever connects speaks first:

    sender binds:    Take() -> Status(stream) -> Take(stream, claim?) -> Status(lane) -> Data ...
    receiver binds:            Status(stream) -> Take(stream, claim?) -> Status(lane) -> Data ...

A connection keeps its order, so a receiver that finds a gap, or fewer datapoints than a status says
were sent before it, knows that they are lost, and asks once for everything from there on. A new
connection begins with the same question. A number below the expected one is a repetition and is
dropped.

**States of a lane**, at the sender: *open* (statuses and datapoints go out as credit allows);
*lost* (its connection is gone: it keeps its datapoints, and goes on when the receiver is back);
*buried* (by `Bye`, by a successor's claim, by another receiver at the same address, or after
`peer_timeout` if another receiver is there: what is left goes to the front of the queue, and a last
acknowledgement is still honoured for what waits there). At the receiver: *met* (no lane yet),
*open*, *lost*, *finished*. A lane number higher than its own tells a receiver that its lane was
buried, and it drops what it holds of it.

**Restarts.** A sender started anew has a new stream and knows no lanes; receivers consume what they
have of the old one. A receiver started anew has a new name and gets a new lane. If it has restored
a state, its first `Take` carries a *claim*: my predecessor consumed so much of its lane. The sender
takes that as the acknowledgement and gives the rest to whoever comes first.

**Bounds.** A sender keeps `hwm` datapoints for each receiver, and as many for all that are out of
reach. A receiver gives a credit of `hwm`, shared among its senders, at least 1 each, and drops what
comes beyond. A frame above `max_message` is refused before it is read. Names of streams and
receivers are bounded in length and number.

**Who may talk.** Frames are msgpack of fixed types and records of `core.codec`, both checksummed;
nothing is ever unpickled. What is neither is dropped and counted (`LinkCounts`). Without
`CurveKeys`, an end binds to loopback only, where every local user may connect; use an 'ipc://'
address in a private directory to keep them out. With keys all is encrypted, and the binding end
admits only the keys it was told. Those who are admitted can still make up datapoints, or exhaust
memory by one message of endlessly many frames, which libzmq has no limit for.
"""

from towerpack.dataflow.remote.curve_keys import CurveKeys
from towerpack.dataflow.remote.link_options import LinkCounts, LinkOptions
from towerpack.dataflow.remote.receive import RemoteDataZMQ
from towerpack.dataflow.remote.send import send_dataflow_zmq

__all__ = ["CurveKeys", "LinkCounts", "LinkOptions", "RemoteDataZMQ", "send_dataflow_zmq"]
