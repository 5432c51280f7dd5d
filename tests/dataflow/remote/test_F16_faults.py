"""F16 with real processes, real signals and a real, bad, network."""

import json
import random
import signal
import threading

import pytest

from tests.dataflow.remote.ends import (
    FAST,
    HWM,
    PATIENCE,
    End,
    Numbers,
    checked,
    lines_of,
    release,
    values_of,
    wait_for,
)
from tests.dataflow.remote.proxy import Proxy, free_port
from towerpack.dataflow.base import DataFlowTerminated
from towerpack.dataflow.remote import RemoteDataZMQ, send_dataflow_zmq

pytestmark = pytest.mark.timeout(240)
TOTAL = 400
BOTH = pytest.mark.parametrize("bound", ["receiver", "sender"])


def roles(bound):
    """The word that makes one of the two ends bind."""
    return (["bind"], []) if bound == "sender" else ([], ["bind"])


@BOTH
def test_F16_receiver_sigkilled_again_and_again(bound, tmp_path):
    address, log = f"tcp://127.0.0.1:{free_port()}", tmp_path / "log"
    sending, receiving = roles(bound)
    rng = random.Random(1)
    with End("send", address, TOTAL, *sending) as sender:
        for _ in range(5):
            before = len(lines_of(log))
            with End("receive", address, log, *receiving, "pause=0.002", "hold=60") as receiver:
                wanted = before + rng.randint(1, 40)
                wait_for(lambda wanted=wanted: len(lines_of(log)) >= wanted, "datapoints")
                receiver.kill()
        with End("receive", address, log, *receiving) as receiver:
            receiver.finish()
        counts = json.loads(sender.finish())
    values = values_of(log)
    assert sorted(values) == list(range(TOTAL))
    assert bound == "sender" or values == list(range(TOTAL))
    assert counts["datapoints"] == TOTAL
    assert counts["duplicates"] == 0


@BOTH
def test_F16_sender_sigkilled_begins_anew(bound, tmp_path):
    address, log = f"tcp://127.0.0.1:{free_port()}", tmp_path / "log"
    sending, receiving = roles(bound)
    with End("receive", address, log, *receiving, "pause=0.002") as receiver:
        with End("send", address, TOTAL, *sending, "hold=300") as sender:
            wait_for(lambda: len(values_of(log)) >= 50, "datapoints")
            sender.kill()
        with End("send", address, TOTAL, *sending) as sender:
            sender.finish()
        receiver.finish()
    values = values_of(log)
    # Two streams: of the first what had arrived, of the second all; each once and in order.
    begun_anew = len(values) - TOTAL
    assert values[begun_anew:] == list(range(TOTAL))
    assert values[:begun_anew] == list(range(begun_anew))
    assert begun_anew >= 50


class Transfer:
    """A sender and a receiver in this process, which the test gets between.

    Nothing is sent before the test says how far: `reach`, or `numbers.hold`.
    """

    def __init__(self, bound, total=TOTAL, hwm=HWM, options=FAST, seed=0):
        self.port = free_port()
        self.proxy = Proxy(self.port, seed)
        direct, through = f"tcp://127.0.0.1:{self.port}", self.proxy.address
        receiver_binds = bound == "receiver"
        self.flow = RemoteDataZMQ(
            direct if receiver_binds else through, hwm=hwm, bind=receiver_binds, options=options
        )
        self.numbers = Numbers(total, hold=0)
        self.values, self.sent = [], None
        self._failure = None

        def send():
            self.sent = send_dataflow_zmq(
                self.numbers,
                through if receiver_binds else direct,
                hwm,
                bind=not receiver_binds,
                repeat=1,
                options=options,
            )

        def receive():
            try:
                for datapoint in self.flow:
                    self.values.append(checked(datapoint))
            except DataFlowTerminated:
                pass
            except BaseException as error:
                self._failure = error
                raise

        self._threads = [threading.Thread(target=action, daemon=True) for action in (send, receive)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind, *rest):
        try:
            if kind is None:
                self.numbers.hold = self.numbers.total
                for thread in self._threads:
                    thread.join(PATIENCE)
                    assert not thread.is_alive(), f"received {len(self.values)} datapoints"
        finally:
            self.proxy.close()

    def reach(self, count):
        """Returns in the middle of the transfer: `count` have arrived, more are under way."""
        self.numbers.hold = count + 4 * HWM
        wait_for(lambda: len(self.values) >= count, "datapoints")


@BOTH
def test_F16_link_cut(bound):
    with Transfer(bound) as transfer:
        for count in range(20, TOTAL, 40):
            transfer.reach(count)
            transfer.proxy.cut()
    assert transfer.values == list(range(TOTAL))
    assert transfer.proxy.connections > 5
    assert transfer.sent.datapoints == TOTAL


@BOTH
def test_F16_link_down_for_a_while(bound):
    with Transfer(bound) as transfer:
        transfer.reach(50)
        transfer.proxy.refuse = True
        transfer.proxy.cut()
        received = len(transfer.values)
        threading.Event().wait(1.5 * FAST.peer_timeout)
        assert len(transfer.values) <= received + HWM
        transfer.proxy.refuse = False
    assert transfer.values == list(range(TOTAL))
    assert transfer.sent.duplicates == 0


@BOTH
def test_F16_link_stalls_longer_than_the_heartbeat(bound):
    with Transfer(bound) as transfer:
        transfer.reach(50)
        connections = transfer.proxy.connections
        transfer.proxy.stall = True
        wait_for(lambda: transfer.proxy.connections > connections, "a new connection")
        transfer.proxy.stall = False
    assert transfer.values == list(range(TOTAL))


def test_F16_link_cut_while_the_receiver_closes():
    port = free_port()
    flow = RemoteDataZMQ(f"tcp://127.0.0.1:{port}", hwm=HWM, options=FAST)
    with Proxy(port) as proxy:
        sender = threading.Thread(
            target=send_dataflow_zmq,
            args=(Numbers(30), proxy.address, HWM),
            kwargs={"repeat": 1, "options": FAST},
            daemon=True,
        )
        sender.start()
        first = iter(flow)
        values = [checked(next(first)) for _ in range(10)]
        proxy.stall = True
        closing = threading.Thread(target=first.close)
        closing.start()
        threading.Event().wait(0.3)  # its goodbye is under way, and will not arrive
        proxy.cut()
        proxy.stall = False
        closing.join(PATIENCE)
        with pytest.raises(DataFlowTerminated):
            for datapoint in flow:
                values.append(checked(datapoint))
        sender.join(PATIENCE)
    assert values == list(range(30))


@BOTH
def test_F16_link_flips_bits(bound):
    total = 5 * TOTAL
    with Transfer(bound, total) as transfer:
        transfer.proxy.corrupt = 0.1
        transfer.numbers.hold = total // 2
        wait_for(lambda: transfer.proxy.corrupted >= 15, "damage")
        transfer.proxy.corrupt = 0.0
    assert transfer.values == list(range(total))
    ends = [transfer.flow.counts, transfer.sent]
    assert sum(c.damaged + c.garbage + c.disconnects + c.refused for c in ends) > 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
@BOTH
def test_F16_soak_link_flips_bits(bound):
    for seed in range(100):
        with Transfer(bound, 5 * TOTAL, seed=seed) as transfer:
            transfer.proxy.corrupt = 0.08
            transfer.numbers.hold = 4 * TOTAL
            wait_for(lambda: transfer.proxy.corrupted >= 50, "damage")
            transfer.proxy.corrupt = 0.0
        assert transfer.values == list(range(5 * TOTAL))


def test_F16_a_protocol_error_does_not_end_the_link():
    """A connecting socket of libzmq gives up for good when a frame's length makes no sense."""
    with Transfer("receiver") as transfer:
        for count in (30, 60, 90):
            transfer.reach(count)
            connections = transfer.proxy.connections
            transfer.proxy.inject(b"\x02" + b"\xff" * 8)
            wait_for(lambda n=connections: transfer.proxy.connections > n, "a new connection")
    assert transfer.values == list(range(TOTAL))


def test_F16_slow_peer_holds_up_nobody_and_memory_is_bounded():
    address = f"tcp://127.0.0.1:{free_port()}"
    drawn = []
    enough = threading.Event()

    class Counted(Numbers):
        def __iter__(self):
            for datapoint in super().__iter__():
                drawn.append(datapoint[0])
                yield datapoint

    flows = [RemoteDataZMQ(address, hwm=HWM, bind=False, options=FAST) for _ in range(2)]
    received = {"fast": [], "slow": []}

    def consume(name, flow):
        iterator = iter(flow)
        try:
            while True:
                received[name].append(checked(next(iterator)))
                if name == "slow":
                    enough.wait(PATIENCE)
        except DataFlowTerminated:
            pass

    def send():
        send_dataflow_zmq(Counted(TOTAL), address, HWM, bind=True, repeat=1, options=FAST)

    threads = [
        threading.Thread(target=consume, args=("slow", flows[1]), daemon=True),
        threading.Thread(target=send, daemon=True),
        threading.Thread(target=consume, args=("fast", flows[0]), daemon=True),
    ]
    for thread in threads[:2]:
        thread.start()
    # Before the other comes: if that one had taken all, this one would wait for another sender.
    wait_for(lambda: received["slow"], "a datapoint")
    threads[2].start()
    while len(received["fast"]) < TOTAL - 4 * HWM:
        # What was drawn is received, held by the sender (for each receiver), or in its hand.
        assert len(drawn) <= sum(map(len, received.values())) + 2 * HWM + 3
        threading.Event().wait(0.01)
    assert len(received["slow"]) == 1
    enough.set()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert sorted(received["fast"] + received["slow"]) == list(range(TOTAL))


def test_F16_several_senders_to_one_receiver(tmp_path):
    address = f"tcp://127.0.0.1:{free_port()}"
    flow = RemoteDataZMQ(address, hwm=HWM, senders=3, options=FAST)
    values = []
    with (
        End("send", address, 100) as first,
        End("send", address, 100) as second,
        End("send", address, 100) as third,
    ):
        with pytest.raises(DataFlowTerminated):
            for datapoint in flow:
                values.append(checked(datapoint))
        for sender in (first, second, third):
            sender.finish()
    assert sorted(values) == sorted([*range(100)] * 3)
    assert flow.cnt1 == 300


def test_F16_one_of_several_receivers_sigkilled_and_restored(tmp_path):
    address = f"tcp://127.0.0.1:{free_port()}"
    logs = [tmp_path / "a", tmp_path / "b"]
    with End("send", address, TOTAL, "bind") as sender:
        with End("receive", address, logs[0], "pause=0.005", "hold=100") as other:
            for _ in range(3):
                before = len(lines_of(logs[1]))
                with End("receive", address, logs[1], "pause=0.005", "hold=60") as receiver:
                    wait_for(lambda n=before: len(lines_of(logs[1])) >= n + 5, "datapoints")
                    receiver.kill()
            before = len(lines_of(logs[1]))
            with End("receive", address, logs[1]) as receiver:
                wait_for(lambda: len(lines_of(logs[1])) > before, "datapoints")
                release(logs[0])
                sender.finish()
                receiver.finish()
            other.finish()
    assert sorted(values_of(logs[0]) + values_of(logs[1])) == list(range(TOTAL))
    assert values_of(logs[0])
    assert values_of(logs[1])


def test_F16_receiver_that_never_comes_back_loses_nothing(tmp_path):
    address = f"tcp://127.0.0.1:{free_port()}"
    logs = [tmp_path / "a", tmp_path / "b"]
    with End("send", address, TOTAL, "bind") as sender:
        with End("receive", address, logs[0], "pause=0.005", "hold=100") as receiver:
            with End("receive", address, logs[1], "pause=0.005", "hold=100") as victim:
                wait_for(lambda: len(lines_of(logs[1])) >= 5, "datapoints")
                victim.kill()
            release(logs[0])
            sender.finish()
            receiver.finish()
    survivor, dead = values_of(logs[0]), values_of(logs[1])
    assert len(set(survivor)) == len(survivor)
    assert {*survivor, *dead} == set(range(TOTAL))
    # What the dead one had taken and not yet acknowledged came again: the last few, at most.
    again = set(survivor) & set(dead)
    assert len(again) <= HWM
    assert again <= set(dead[-HWM:])


@pytest.mark.parametrize("stopped", ["receiver", "sender"])
def test_F16_a_stopped_process_goes_on(stopped, tmp_path):
    address, log = f"tcp://127.0.0.1:{free_port()}", tmp_path / "log"
    with (
        End("send", address, TOTAL) as sender,
        End("receive", address, log, "bind", "pause=0.002") as receiver,
    ):
        wait_for(lambda: len(values_of(log)) >= 50, "datapoints")
        process = (receiver if stopped == "receiver" else sender).process
        process.send_signal(signal.SIGSTOP)
        threading.Event().wait(1.5 * FAST.peer_timeout)  # the link is dropped, and given up
        process.send_signal(signal.SIGCONT)
        sender.finish()
        receiver.finish()
    assert values_of(log) == list(range(TOTAL))
