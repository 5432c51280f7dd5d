import contextlib
import gc
import itertools
import json
import pickle
import threading

import numpy as np
import pytest

from tests.dataflow.remote.ends import FAST, PATIENCE, endpoints, wait_for
from tests.dataflow.remote.proxy import free_port
from tests.leftovers import descriptors, threads
from towerpack.core import codec
from towerpack.dataflow import BatchData, DataFromList, MapData
from towerpack.dataflow.base import DataFlowTerminated
from towerpack.dataflow.remote import LinkOptions, RemoteDataZMQ, send_dataflow_zmq
from towerpack.dataflow.remote.protocol import Data, Peer, Status
from towerpack.dataflow.remote.receive import Inbox


@contextlib.contextmanager
def sending(flow, address, **arguments):
    """A sender in a thread; the block must let it come to its end."""
    counts = []

    def send():
        counts.append(send_dataflow_zmq(flow, address, options=FAST, **arguments))

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    yield counts
    thread.join(PATIENCE)
    assert not thread.is_alive()


def until_terminated(iterator):
    values = []
    with pytest.raises(DataFlowTerminated):
        while True:
            values.append(next(iterator))
    return values


@pytest.fixture
def address():
    return f"tcp://127.0.0.1:{free_port()}"


def numbers(count):
    return DataFromList([[number] for number in range(count)], shuffle=False)


@pytest.mark.parametrize("bind", [True, False])
def test_everything_arrives_in_order_and_then_it_has_ended_for_good(address, bind):
    iterator = iter(RemoteDataZMQ(address, bind=bind, options=FAST))
    with sending(numbers(300), address, bind=not bind, repeat=2) as counts:
        assert until_terminated(iterator) == [[n] for n in range(300)] * 2
        with pytest.raises(DataFlowTerminated):
            next(iterator)
    assert counts[0].datapoints == 600


def test_the_senders_passes_are_epochs(address):
    flow = DataFromList([[n] for n in range(20)], shuffle=True)
    expected = [*flow.iterate(0), *flow.iterate(1), *flow.iterate(2)]
    with sending(flow, address, repeat=3):
        assert until_terminated(iter(RemoteDataZMQ(address, options=FAST))) == expected


@pytest.mark.parametrize("bind", [True, False])
@pytest.mark.parametrize(("size", "total"), [(1, 300), (300_000, 100)])
def test_a_pass_that_is_closed_loses_and_repeats_nothing(address, size, total, bind):
    # With large datapoints some are always on their way when it is closed.
    flow, values = RemoteDataZMQ(address, hwm=7, bind=bind, options=FAST), []
    datapoints = [[number, bytes(size)] for number in range(total)]
    with sending(datapoints, address, bind=not bind, repeat=1):
        for length in itertools.cycle([1, 13, 4]):
            with flow.iterate() as iterator:
                for _ in range(min(length, total - len(values))):
                    values.append(next(iterator)[0])
            if len(values) == total:
                break
    assert values == list(range(total))


def test_two_addresses_are_counted_apart(address):
    second = f"tcp://127.0.0.1:{free_port()}"
    flow = RemoteDataZMQ(address, second, senders=2, options=FAST)
    with sending(numbers(30), address, repeat=1), sending(numbers(20), second, repeat=1):
        assert sorted(until_terminated(iter(flow))) == sorted([*numbers(30), *numbers(20)])
    assert (flow.cnt1, flow.cnt2) == (30, 20)
    assert flow.counts.datapoints == 50


def test_arrays_come_exact_and_may_be_written_into(address):
    datapoint = {
        "image": np.arange(70000, dtype=">f4").reshape(100, 700),
        "name": ("x", b"y", None),
    }
    with sending([datapoint], address, repeat=1):
        (received,) = until_terminated(iter(RemoteDataZMQ(address, options=FAST)))
    assert received["image"].dtype == np.dtype(">f4")
    np.testing.assert_array_equal(received["image"], datapoint["image"])
    assert received["name"] == datapoint["name"]
    received["image"] += 1


def test_it_is_a_flow_among_others(address):
    flow = BatchData(MapData(RemoteDataZMQ(address, options=FAST), lambda dp: [dp[0] * 2]), 3)
    with sending(numbers(6), address, repeat=1):
        iterator = iter(flow)
        assert [next(iterator)[0].tolist() for _ in range(2)] == [[0, 2, 4], [6, 8, 10]]
        iterator.close()
    with pytest.raises(TypeError, match="no len"):
        len(RemoteDataZMQ(address))
    assert pickle.loads(pickle.dumps(RemoteDataZMQ(address))).endpoints.addresses == [address]


@pytest.mark.parametrize("bind", [True, False])
def test_a_restored_state_goes_on_at_every_position(bind):
    for position in range(8):
        address = f"tcp://127.0.0.1:{free_port()}"
        flow = RemoteDataZMQ(address, hwm=4, bind=bind, options=FAST)
        with sending(numbers(8), address, bind=not bind, repeat=1):
            first = iter(flow)
            values = [next(first) for _ in range(position)]
            state = json.loads(json.dumps(first.state()))
            if first._inner._link:  # gone without a goodbye, as if killed
                with first._inner._link.condition:
                    first._inner._inbox.close = lambda: None
                    first._inner._inbox._closing, first._inner._inbox.sessions = True, {}
            first.close()
            second = iter(flow)
            second.restore(state)
            assert second.state() == state
            assert values + until_terminated(second) == [[n] for n in range(8)]


def test_a_state_older_than_the_last_acknowledgement_says_what_is_missed(address, capsys):
    flow = RemoteDataZMQ(address, hwm=4, options=FAST)
    with sending(numbers(20), address, repeat=1):
        first = iter(flow)
        for _ in range(5):
            next(first)
        state = first.state()
        for _ in range(5):
            next(first)
        first.close()
        second = iter(flow)
        second.restore(state)
        assert until_terminated(second) == [[n] for n in range(10, 20)]
    assert flow.counts.missed == 5
    assert "5 datapoints are not repeated" in capsys.readouterr().err


def test_a_state_of_an_earlier_version_is_accepted(address):
    with sending(numbers(3), address, repeat=1):
        iterator = iter(RemoteDataZMQ(address, options=FAST))
        state = {"streams": {"0123456789abcdef": ["fedcba9876543210", 1, 7]}}
        iterator.restore({**iterator.state(), "at": state})
        assert until_terminated(iterator) == [[0], [1], [2]]


def test_a_running_iterator_cannot_be_rewound(address):
    with sending(numbers(3), address, repeat=1):
        iterator = iter(RemoteDataZMQ(address, options=FAST))
        state = iterator.state()
        next(iterator)
        iterator.restore(iterator.state())
        with pytest.raises(ValueError, match="cannot be rewound"):
            iterator.restore(state)
        with pytest.raises(ValueError, match="expected a state with 'streams'"):
            iterator.restore({"epoch": 0, "at": {"index": 3}})
        until_terminated(iterator)


def test_one_iterator_at_a_time_has_a_bound_address(address):
    flow = RemoteDataZMQ(address, options=FAST)
    with sending(numbers(3), address, repeat=1):
        first = iter(flow)
        next(first)
        with pytest.raises(
            OSError, match=f"cannot bind to {address}.*another iterator of this flow"
        ):
            next(iter(flow))
        until_terminated(first)


def test_closed_is_at_its_end(address):
    iterator = iter(RemoteDataZMQ(address))
    iterator.close()
    iterator.close()
    assert list(iterator) == []


def test_closing_ends_the_wait_of_another_thread(address):
    iterator = iter(RemoteDataZMQ(address, options=FAST))
    values = []
    consumer = threading.Thread(target=lambda: values.extend(iterator))
    consumer.start()
    wait_for(lambda: iterator._inner._link is not None, "the consumer")
    iterator.close()
    consumer.join(PATIENCE)
    assert not consumer.is_alive()
    assert values == []


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_L4_nothing_is_left_behind(how):
    def once():
        address = f"tcp://127.0.0.1:{free_port()}"
        with sending(numbers(5), address, repeat=1):
            iterator = iter(RemoteDataZMQ(address, options=FAST))
            for _ in range(5):
                next(iterator)
            if how == "closed":
                iterator.close()
            else:
                del iterator
                gc.collect()

    once()
    files, running = len(descriptors()), threads()
    for _ in range(10):
        once()
    wait_for(lambda: not threads() - running, "threads to end")
    wait_for(lambda: len(descriptors()) <= files, "descriptors to be closed")


def test_what_cannot_be_decoded_is_an_error_that_names_the_datapoint(address):
    # A sender of another time, whose records this one does not understand: rightly sealed.
    good, header = codec.encode([5]), b"\x92\xa1z\x01"
    strange = codec.encode(None)[:8] + len(header).to_bytes(4, "little") + bytes(8) + header
    strange = seal(strange)
    flow = RemoteDataZMQ(address, options=FAST)
    iterator = flow.iterator(None)
    inbox: Inbox = iterator._inbox
    peer = Peer(0, b"x")
    inbox.receive(peer, Status("s"), None)
    for seq, record in enumerate([strange, good]):
        session, _ = inbox.state()["s"]
        message = Data("s", session, seq, seq)
        inbox.receive(peer, message, record)
    with pytest.raises(codec.DecodeError, match="unknown tag 'z'") as caught:
        next(iterator)
    assert caught.value.__notes__ == ["in datapoint 0 of a remote flow, which is left out"]
    assert next(iterator) == [5]
    iterator.close()


def seal(record):
    import google_crc32c

    return record[:4] + google_crc32c.value(record[8:]).to_bytes(4, "little") + record[8:]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"addr1": "udp://127.0.0.1:1"}, "expected an address like 'tcp://127.0.0.1:5555'"),
        ({"addr1": "127.0.0.1:1"}, "expected an address like"),
        ({"addr1": None}, "expected an address like"),
        ({"addr1": "ipc://x", "hwm": 0}, "expected a positive hwm"),
        ({"addr1": "ipc://x", "hwm": 1.5}, "expected hwm as an integer"),
        ({"addr1": "ipc://x", "senders": 0}, "expected senders as a positive integer"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        RemoteDataZMQ(**arguments)


@pytest.mark.parametrize("name", ["max_message", "heartbeat", "peer_timeout"])
def test_options_must_be_positive(name):
    with pytest.raises(ValueError, match=f"expected a positive {name}, received 0"):
        LinkOptions(**{name: 0})


def test_share_of_the_credit_follows_the_senders():
    inbox = Inbox(endpoints(12))
    credits = []
    for number in range(4):
        inbox.receive(Peer(0, b"%d" % number), Status(f"s{number}"), None)
        credits.append({message.credit for _, message, _ in inbox.outgoing()})
    assert credits == [{12}, {6}, {4}, {3}]
