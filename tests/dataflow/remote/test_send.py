import signal
import subprocess
import sys
import threading

import pytest

from tests.dataflow.remote.ends import FAST, PATIENCE, endpoints
from tests.dataflow.remote.proxy import free_port
from tests.dataflow.remote.test_receive import numbers, sending, until_terminated
from towerpack.core import codec
from towerpack.dataflow import DataFromList, MapData
from towerpack.dataflow.remote import RemoteDataZMQ, send_dataflow_zmq
from towerpack.dataflow.remote.link import LinkThread
from towerpack.dataflow.remote.send import Outbox


@pytest.fixture
def address():
    return f"tcp://127.0.0.1:{free_port()}"


def test_format_of_old_scripts_is_accepted(address):
    with sending(numbers(3), address, format="zmq_ops", repeat=1):
        assert until_terminated(iter(RemoteDataZMQ(address, options=FAST))) == [[0], [1], [2]]
    with pytest.raises(ValueError, match="expected format None or 'zmq_ops', received 'pickle'"):
        send_dataflow_zmq(numbers(3), address, format="pickle")


def test_endless_by_default(address):
    program = f"""
from towerpack.dataflow.remote import send_dataflow_zmq
send_dataflow_zmq([[0], [1]], {address!r})
"""
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE) as process:
        with RemoteDataZMQ(address, options=FAST).iterate() as iterator:
            assert [next(iterator) for _ in range(1000)] == [[0], [1]] * 500
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert b"KeyboardInterrupt" in errors
    assert process.returncode in (1, -signal.SIGINT, 130)


@pytest.mark.timeout(60)
def test_a_lock_that_an_interrupt_left_taken_does_not_keep_a_link_from_closing(address):
    """Ctrl-C after `with link.condition` has taken it and before its block begins."""
    link = LinkThread(Outbox(endpoints(1, address=address)))
    link.condition.acquire()
    link.condition.acquire()
    link.close()
    assert not link._thread.is_alive()


def test_a_relay_passes_on_and_ends_with_its_source(address):
    second = f"tcp://127.0.0.1:{free_port()}"
    relay = MapData(RemoteDataZMQ(address, options=FAST), lambda dp: [dp[0] + 100])
    with sending(numbers(50), address, repeat=1), sending(relay, second):
        received = until_terminated(iter(RemoteDataZMQ(second, options=FAST)))
    assert received == [[n + 100] for n in range(50)]


def test_failure_of_the_flow_is_raised_here_and_reported_there(address, capsys):
    iterator = iter(RemoteDataZMQ(address, options=FAST))
    failed, received = [], threading.Event()

    def fail_at_3(dp):
        if dp[0] == 3:
            received.wait(PATIENCE)
            raise ZeroDivisionError("three")
        return dp

    def send():
        try:
            send_dataflow_zmq(MapData(numbers(9), fail_at_3), address, options=FAST)
        except ZeroDivisionError as error:
            failed.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    assert [next(iterator) for _ in range(3)] == [[0], [1], [2]]
    received.set()
    sender.join(PATIENCE)
    assert str(failed[0]) == "three"
    # A sender that comes later begins a stream of its own.
    with sending(DataFromList([["next"]]), address, repeat=1):
        assert next(iterator) == ["next"]
        iterator.close()
    assert (
        "stopped before the end of its stream: ZeroDivisionError: three" in capsys.readouterr().err
    )


def test_what_cannot_be_encoded_is_named(address):
    with pytest.raises(codec.EncodeError, match=r"component \[1\] is a object") as caught:
        send_dataflow_zmq([[1, object()]], address, options=FAST)
    assert caught.value.__notes__ == ["in datapoint 0 of the flow that is sent"]


def test_nothing_to_send_is_an_error(address):
    with pytest.raises(ValueError, match="no datapoint in a whole epoch"):
        send_dataflow_zmq([], address, options=FAST)


def test_wrong_arguments_are_named(address):
    with pytest.raises(ValueError, match="expected repeat as a positive number or None"):
        send_dataflow_zmq(numbers(3), address, repeat=0)
    with pytest.raises(ValueError, match="expected a positive hwm"):
        send_dataflow_zmq(numbers(3), address, hwm=0)
    with pytest.raises(TypeError, match="expected a DataFlow, a sequence or an iterable"):
        send_dataflow_zmq(3, address)
