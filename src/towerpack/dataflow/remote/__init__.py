"""Flows between processes and machines: `send_dataflow_zmq` and `RemoteDataZMQ`.

**Guarantees.** Every datapoint of a sender's stream reaches one consumer, exactly once. With one
receiver they arrive in the stream's order; of several receivers, each gets a part, in order.

- The link is cut, stalls, or damages bytes: exactly once. The transfer continues by itself.
- A process is stopped, or slow: exactly once. The others continue; memory is bounded at both ends.
- A receiver closes its iterator: exactly once. The next iterator or receiver gets the rest.
- A receiver is killed: nothing is lost. What it has not acknowledged goes to the next receiver. A
  datapoint is acknowledged within a heartbeat after the consumer has asked for the next one. So the
  last few come again, unless the successor restores a state that was saved with the results: then
  exactly once.
- A receiver is unreachable for longer than `peer_timeout` while another is reachable: the other one
  gets what was not acknowledged. If the first is alive after all, it drops what it still holds.
  What it has consumed in the meantime may have been consumed twice, and is counted. While there is
  no other receiver, nothing is given away.
- A sender is killed: what has arrived is consumed, once. When it is started again, it begins a new
  stream.
- A sender's flow raises, or is interrupted: the same, and the receivers log the reason.
- The stream ends (`repeat=`): the sender returns when all of it is acknowledged, and the receivers
  raise `DataFlowTerminated`.

**Names and numbers.** The sender names its *stream* at random, and gives each datapoint an `index`
in it. The receiver names its *session* with a stream at random, and the sender numbers the
datapoints of each session from 0 (`seq`). A session's datapoints are sent, received and
acknowledged in this order, so two counts describe it: `received` and `consumed`. A datapoint with a
smaller number is a repetition, which the receiver drops. A larger number shows that some are lost.

**Messages** (`protocol`). The end that binds has a ROUTER socket, the end that connects a DEALER,
whichever of the two sends datapoints. The end that connects introduces itself with every heartbeat.

- `Request` (receiver): how much of my session I have received and consumed, and my credit: how many
  datapoints may be outstanding beyond the consumed ones. It is sent with every heartbeat, and when
  a quarter of the credit was consumed. It may ask for a resend, or close the session.
- `Status` (sender) answers each request: the stream; how much of the session was sent and
  acknowledged; whether the session is over, and whether the stream is complete.
- `Data` (sender): a datapoint.

`Status` and `Request` describe the current state, not a change, so each may be lost, repeated or
late.

    sender binds:    Request() -> Status(stream) -> Request(stream, session, credit) -> Data ...
    receiver binds:               Status(stream) -> Request(stream, session, credit) -> Data ...

**What is kept.** A sender keeps every datapoint until it is acknowledged: up to `hwm` for each
receiver, and once more `hwm` for all unreachable ones. A receiver grants a credit of `hwm`, divided
among its senders, at least 1 each, and drops what exceeds it.

**Loss and reconnection.** A connection keeps the order of its messages. So a receiver that misses a
number, or has fewer datapoints than a `Status` says were sent before it, asks once for everything
from there on. That is the only way in which anything is sent again; neither end needs to know
whether a connection broke. The session survives the connection.

**The end of a session.** The receiver closes it, another receiver appears at the same address, or
the receiver is silent for `peer_timeout` while another one is reachable. What is left of it goes
back to the front of the sender's queue. Its receiver learns from an `over` status, and begins a new
session; a last acknowledgement still counts for datapoints that no other receiver has been given. A
receiver that has restored a state first closes the session of its predecessor, in its name, and
acknowledges what the state says was consumed.

**Who may connect.** Frames are msgpack of fixed types and records of `core.codec`. Both have
checksums, and nothing is ever unpickled. Everything else is dropped and counted (`LinkCounts`).
The first such message is logged, with the reason: another version of the protocol, for example.
A frame above `max_message` is refused before it is read. The number and length of names is bounded.
Without `CurveKeys`, an end binds to loopback only, where every local user may connect; use an
'ipc://' address in a private directory to keep them out. With keys all traffic is encrypted, and
the end that binds admits only the keys that it was given. A peer that is admitted can still invent
datapoints, or exhaust memory by a message of endlessly many frames, which libzmq does not limit.
"""

from towerpack.dataflow.remote.curve_keys import CurveKeys
from towerpack.dataflow.remote.protocol import LinkCounts, LinkOptions
from towerpack.dataflow.remote.receive import RemoteDataZMQ
from towerpack.dataflow.remote.send import send_dataflow_zmq

__all__ = ["CurveKeys", "LinkCounts", "LinkOptions", "RemoteDataZMQ", "send_dataflow_zmq"]
