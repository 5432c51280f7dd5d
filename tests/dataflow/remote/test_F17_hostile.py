"""F17: garbage, oversize and unauthenticated frames are dropped and counted; memory is bounded."""

import os
import random
import socket
import struct
import threading
import time

import google_crc32c
import pytest
import zmq

from tests.dataflow.remote.ends import FAST, HWM, PATIENCE, Numbers, checked, endpoints, wait_for
from tests.dataflow.remote.proxy import free_port
from towerpack.core import codec
from towerpack.dataflow.base import DataFlowTerminated
from towerpack.dataflow.remote import CurveKeys, LinkOptions, RemoteDataZMQ, send_dataflow_zmq
from towerpack.dataflow.remote.link import LinkThread
from towerpack.dataflow.remote.protocol import MARK, Data, Peer, Request, Status, pack
from towerpack.dataflow.remote.receive import MAX_STREAMS, Inbox
from towerpack.dataflow.remote.send import MAX_SESSIONS, Outbox

TOTAL = 200
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"

_BODY = b"\x92\xa6status\xa2\xff\xfe"
NOT_UTF8 = MARK + google_crc32c.value(_BODY).to_bytes(4, "little") + _BODY


@pytest.mark.parametrize(
    "address",
    ["tcp://*:5555", "tcp://0.0.0.0:5555", "tcp://[::]:5555", "tcp://eth0:5555", "tcp://1.2.3.4:*"],
)
def test_F17_binding_beyond_loopback_needs_a_key(address):
    with pytest.raises(ValueError, match=r"reached from other machines.*keys=CurveKeys"):
        RemoteDataZMQ(address)
    with pytest.raises(ValueError, match=r"reached from other machines.*keys=CurveKeys"):
        send_dataflow_zmq([[1]], address, bind=True)
    RemoteDataZMQ(address, bind=False)
    RemoteDataZMQ(address, keys=CurveKeys.generate().with_peers(CurveKeys.generate().public))


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:5555", "tcp://127.3.2.1:5555", "tcp://localhost:5555", "ipc://x"]
)
def test_F17_loopback_needs_none(address):
    RemoteDataZMQ(address)


class Receiver:
    """A bound receiver whose consumer runs in a thread, and an honest sender."""

    def __init__(self, options=FAST, keys=None, sender_keys=None):
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.flow = RemoteDataZMQ(self.address, hwm=HWM, keys=keys, options=options)
        self.values = []
        self._options, self._sender_keys = options, sender_keys
        self._consumer = threading.Thread(target=self._consume, daemon=True)
        self._consumer.start()

    def _consume(self):
        try:
            for datapoint in self.flow:
                self.values.append(checked(datapoint))
        except DataFlowTerminated:
            pass

    def finish(self):
        """The honest sender's turn: everything it sends must arrive."""
        sent = send_dataflow_zmq(
            Numbers(TOTAL),
            self.address,
            HWM,
            repeat=1,
            keys=self._sender_keys,
            options=self._options,
        )
        self._consumer.join(PATIENCE)
        assert not self._consumer.is_alive()
        assert self.values == list(range(TOTAL))
        assert sent.datapoints == TOTAL


def stranger(address, keys=None):
    dealer = zmq.Context.instance().socket(zmq.DEALER)
    dealer.linger = 0
    if keys:
        dealer.curve_publickey, dealer.curve_secretkey = keys.public.encode(), keys.secret.encode()
        (dealer.curve_serverkey,) = (key.encode() for key in keys.peers)
    dealer.connect(address)
    return dealer


def test_F17_garbage_frames_are_dropped_and_counted():
    receiver = Receiver()
    rng = random.Random(0)
    record = codec.encode([1])
    good = pack(Status("nobody"))
    garbage = [
        [b""],
        [b"", b""],
        [rng.randbytes(100)],
        [rng.randbytes(5000)],
        [good[:-1]],
        [good[:8] + b"\x00" + good[9:]],
        [good, b"one frame too many"],
        [pack(Data("s", "r", 0, 0))],  # without its record
        [pack(Request())],  # what a receiver says to a sender
        [pack(Request("s", "r", 3, closing=True))],
        [NOT_UTF8],
    ]
    strays = [[pack(Data("s", "r", 0, 0)), record]]
    with stranger(receiver.address) as dealer:
        for frames in (garbage + strays) * 20:
            dealer.send_multipart(frames)
        counts = receiver.flow.counts
        wait_for(lambda: counts.garbage + counts.strayed >= 240, "garbage to be counted")
        receiver.finish()
    assert (counts.garbage, counts.strayed) == (220, 20)


def test_F17_a_sender_drops_and_counts_text_that_is_not_UTF8():
    address = f"tcp://127.0.0.1:{free_port()}"
    ends = endpoints(address=address)
    link = LinkThread(Outbox(ends))
    with stranger(address) as dealer:
        dealer.send(NOT_UTF8)
        wait_for(lambda: ends.counts.garbage == 1, "the message to be counted")
    link.close()


def raw(port, *parts):
    """Says this over TCP, slowly enough to be heard, and waits until the other end hangs up."""
    with socket.socket() as connection:
        # The receiver's thread may not be there yet.
        wait_for(lambda: connection.connect_ex(("127.0.0.1", port)) == 0, "the receiver")
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(0.05)
            connection.settimeout(PATIENCE)
            while connection.recv(4096):
                pass
        except (ConnectionResetError, BrokenPipeError):
            pass


def test_F17_what_is_no_zeromq_is_refused_and_counted():
    receiver = Receiver()
    raw(receiver.port, GREETING[:12] + b"PLAIN".ljust(20, b"\0") + bytes(32))
    wait_for(lambda: receiver.flow.counts.refused == 1, "the refusal to be counted")
    # To libzmq, any first byte but one might be a peer of the oldest version of its protocol.
    raw(receiver.port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + bytes(64))
    counts = receiver.flow.counts
    wait_for(lambda: counts.refused + counts.garbage + counts.disconnects >= 2, "the second")
    receiver.finish()


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
def test_F17_oversize_frame_is_cut_off_before_it_is_stored():
    receiver = Receiver(options=LinkOptions(1 << 20, FAST.heartbeat, FAST.peer_timeout))
    before, disconnects = resident_bytes(), receiver.flow.counts.disconnects
    flood = [bytes(1 << 20)] * 64
    for length in (1 << 62, 1 << 40, (1 << 20) + 1):
        raw(receiver.port, GREETING, READY, b"\x02" + struct.pack(">Q", length), *flood)
    wait_for(lambda: receiver.flow.counts.disconnects >= disconnects + 3, "three to be cut off")
    assert receiver.flow.counts.refused == 0  # they had got through the handshake
    assert resident_bytes() - before < 32 << 20
    receiver.finish()


def test_F17_a_sender_refuses_what_no_receiver_would_take():
    options = LinkOptions(max_message=1000)
    with pytest.raises(ValueError, match=r"datapoint 0 takes 10\d+ bytes, more than max_message"):
        send_dataflow_zmq([[b"x" * 1000]], f"tcp://127.0.0.1:{free_port()}", options=options)


def test_F17_unauthenticated_senders_are_refused_and_counted():
    server, client, other = (CurveKeys.generate() for _ in range(3))
    receiver = Receiver(
        keys=server.with_peers(client.public), sender_keys=client.with_peers(server.public)
    )
    record = codec.encode([1])
    strangers = [
        stranger(receiver.address),  # without encryption
        stranger(receiver.address, other.with_peers(server.public)),  # a key that nobody knows
        stranger(receiver.address, client.with_peers(other.public)),  # for another server
    ]
    for dealer in strangers:
        dealer.send(pack(Status("evil")))
        dealer.send_multipart([pack(Data("evil", "r", 0, 0)), record])
    wait_for(lambda: receiver.flow.counts.refused >= 3, "refusals to be counted")
    receiver.finish()
    counts = receiver.flow.counts
    assert (counts.garbage, counts.strayed) == (0, 0)
    for dealer in strangers:
        dealer.close()


def test_F17_unauthenticated_receivers_get_nothing():
    server, client, other = (CurveKeys.generate() for _ in range(3))
    address = f"tcp://127.0.0.1:{free_port()}"
    keys = server.with_peers(client.public)
    sender = threading.Thread(
        target=send_dataflow_zmq,
        args=(Numbers(TOTAL), address, HWM),
        kwargs={"bind": True, "repeat": 1, "keys": keys, "options": FAST},
        daemon=True,
    )
    sender.start()
    thieves = [stranger(address), stranger(address, other.with_peers(server.public))]
    for dealer in thieves:
        dealer.send(pack(Request()))
    keys = client.with_peers(server.public)
    values = []
    with pytest.raises(DataFlowTerminated):
        for datapoint in RemoteDataZMQ(address, hwm=HWM, bind=False, keys=keys, options=FAST):
            values.append(checked(datapoint))
    assert values == list(range(TOTAL))
    sender.join(PATIENCE)
    for dealer in thieves:
        assert not dealer.poll(0)
        dealer.close()


# Those who keep to the form but not to the rules.

PEER = Peer(0, b"peer")


def opened_inbox():
    inbox = Inbox(endpoints())
    inbox.receive(PEER, Status("s"), None)
    return inbox


def data(inbox, seq):
    return Data("s", inbox.state()["s"][0], seq, seq)


def test_F17_more_than_the_credit_is_dropped():
    inbox, record = opened_inbox(), codec.encode([1])
    for seq in range(1000):
        inbox.receive(PEER, data(inbox, seq), record)
    assert len(inbox.ready) == HWM
    assert inbox.counts.overrun == 1  # and all behind it are a gap


def test_F17_made_up_streams_are_bounded():
    inbox = Inbox(endpoints())
    for number in range(3 * MAX_STREAMS):
        inbox.receive(PEER, Status(f"stream {number}"), None)
        inbox.receive(PEER, Status(f"done {number}", done=True), None)
        for _ in inbox.outgoing():
            pass
    assert len(inbox.sessions) <= MAX_STREAMS
    assert len(inbox._finished) <= MAX_STREAMS
    assert len(inbox.state()) <= MAX_STREAMS


def test_F17_made_up_receivers_are_bounded():
    outbox = Outbox(endpoints())
    for number in range(2 * MAX_SESSIONS):
        peer = Peer(0, b"%d" % number)
        outbox.receive(peer, Request(outbox.stream, f"receiver {number}", credit=9), None)
    assert len(outbox.sessions) <= MAX_SESSIONS


def test_F17_nobody_acknowledges_what_was_not_sent():
    outbox = Outbox(endpoints())
    record = codec.encode([1])
    outbox.add(record)
    take = Request(outbox.stream, "r", credit=9)
    outbox.receive(PEER, take, None)
    assert [type(message) for _, message, _ in outbox.outgoing()] == [Status, Data]
    outbox.receive(PEER, Request(outbox.stream, "r", 1000, 1000, 9), None)
    outbox.end()
    assert outbox.counts.garbage == 1
    assert not outbox.complete
    outbox.receive(PEER, Request(outbox.stream, "r", 1, 1, 9), None)
    assert outbox.complete


def test_F17_damaged_record_is_asked_for_again():
    inbox, record = opened_inbox(), codec.encode([1, 2, 3])
    for damaged in (record[:-1], record[:-1] + b"\xff", b"XXXX" + record[4:], bytes(len(record))):
        inbox.receive(PEER, data(inbox, 0), memoryview(damaged))
    assert inbox.counts.damaged == 4
    (take,) = [message for _, message, _ in inbox.outgoing()]
    assert (take.resend, take.received) == (True, 0)
    inbox.receive(PEER, data(inbox, 0), memoryview(record))
    assert inbox.pop().datapoint == [1, 2, 3]
