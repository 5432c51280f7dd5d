"""Supervisors of several nodes, on loopback: they meet, restart together, and refuse strangers."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
from pathlib import Path

import pytest

from tests.launch.launched import Launched, eventually, free_port

FACTS = "note(f'facts-{rank}-{attempt}', json.dumps([cluster.addresses, cluster.token]))\n"


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def node(launch, port):
    """Starts a node of a job."""

    def start(rank: int, count: int, code: str = FACTS, *options: object, **more) -> Launched:
        place = ["--nnodes", count, "--node-rank", rank, "--rendezvous", f"127.0.0.1:{port}"]
        return launch(code, *place, *options, **more)

    return start


def test_nodes_in_any_order_with_different_numbers_of_ranks(node):
    late = [node(2, 3, FACTS, "--nproc", 1), node(1, 3, FACTS, "--nproc", 2)]
    eventually(lambda: "no answer" not in late[0].err)
    runs = [node(0, 3, FACTS, "--nproc", 1), *late]
    assert [run.wait() for run in runs] == [0, 0, 0], "".join(run.err for run in runs)
    facts = [json.loads(runs[0].note(f"facts-{rank}-0")) for rank in range(4)]
    assert all(each == facts[0] for each in facts)
    assert len(set(facts[0][0])) == 4
    assert all(address.startswith("127.0.0.1:") for address in facts[0][0])
    assert "attempt 0, rank 1 of 4" in runs[0].log(1)


def test_the_addresses_are_those_that_reach_the_rendezvous(launch):
    """Here of the same machine; 127.0.0.2 stands for an address of node 0 alone."""
    place = ["--nnodes", 2, "--rendezvous", f"127.0.0.2:{free_port()}"]
    runs = [launch(FACTS, *place, "--node-rank", rank) for rank in (0, 1)]
    assert [run.wait() for run in runs] == [0, 0]
    addresses, _ = json.loads(runs[0].note("facts-0-0"))
    assert [address.partition(":")[0] for address in addresses] == ["127.0.0.2", "127.0.0.1"]


def test_a_failure_on_one_node_restarts_all_and_is_shown_on_all(node):
    code = (
        FACTS
        + """
progress.beat(1)
if not attempt:
    if rank == 1:
        progress.report_failure(ValueError("the reason caf\\udce9"), secondary=False)
        os._exit(1)
    wait_for("facts-1-0")
    sys.exit(75)
"""
    )
    runs = [node(rank, 2, code) for rank in (0, 1)]
    assert [run.wait() for run in runs] == [0, 0]
    for run in runs:
        assert "rank 1 on host" in run.err
        assert "ValueError: the reason caf\\udce9" in run.err
        assert "all ranks start again in 1 s: attempt 1" in run.err
    first, second = (json.loads(runs[0].note(f"facts-0-{attempt}")) for attempt in (0, 1))
    assert first[0] != second[0]
    assert second[1] == first[1].removesuffix("-0") + "-1"


def test_all_nodes_exit_with_the_code_of_the_first_failure(node):
    code = "if rank == 1:\n    sys.exit(5)\nsys.exit(75)"
    runs = [node(rank, 2, code, "--max-restarts", 0) for rank in (0, 1)]
    assert [run.wait() for run in runs] == [5, 5]


def test_strangers_are_refused_and_the_right_node_is_not_disturbed(node, port):
    right = node(0, 2)
    address = ("127.0.0.1", port)

    def tries():
        with socket.create_connection(address):
            return True

    eventually(lambda: not refused(tries))
    with socket.create_connection(address) as silent, socket.create_connection(address) as flood:
        for text in (b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe\n", b"{}\n", b"[" * 100_000 + b"\n"):
            with socket.create_connection(address) as garbage:
                garbage.sendall(text)
                answer = garbage.makefile("rb").read()
                assert b"expected the line of a `towerpack launch`" in answer
        with pytest.raises(OSError, match=r"reset|pipe"):
            for _ in range(1000):
                flood.sendall(bytes(1 << 16))
        reset = socket.create_connection(address)
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
        reset.close()
        another = node(1, 2, name="another.py")
        assert another.wait() == 1
        assert "belongs to job 'script', and node 1 to job 'another'; give each" in another.err
        assert "Traceback" not in another.err
        larger = node(1, 3)
        assert larger.wait() == 1
        assert "node 0 was started with --nnodes 2, and node 1 with --nnodes 3" in larger.err
        second = node(0, 2)
        assert second.wait() == 1
        assert f"expected to listen at 127.0.0.1:{port} for the other nodes" in second.err
        assert "Only one node has the rank 0" in second.err
        assert silent.getpeername() == address
        good = node(1, 2)
        assert [right.wait(), good.wait()] == [0, 0]
    assert "its line is too long" in right.err
    assert "Traceback" not in right.err


def refused(call) -> bool:
    try:
        call()
    except ConnectionRefusedError:
        return True
    return False


def test_two_nodes_of_one_rank(node):
    zero = node(0, 3)
    twins = [node(1, 3), node(1, 3)]
    eventually(lambda: any(twin.process.poll() is not None for twin in twins))
    assert sum(twin.err.count("both are node 1; give each node its own") for twin in twins) == 1
    two = node(2, 3)
    assert sorted(run.wait() for run in (zero, two, *twins)) == [0, 0, 0, 1]


def test_a_node_that_never_comes_is_named_on_all_nodes(node):
    runs = [node(rank, 4, FACTS, "--rendezvous-timeout", 3) for rank in (0, 2)]
    assert [run.wait() for run in runs] == [1, 1]
    for run in runs:
        assert "2 of 4 nodes are at the rendezvous" in run.err
        assert "missing: node 1, 3. 3 s have passed (--rendezvous-timeout)" in run.err
        assert "Traceback" not in run.err


def test_a_node_0_that_never_comes(node, port):
    run = node(1, 2, FACTS, "--rendezvous-timeout", 1)
    assert run.wait() == 1
    assert f"no answer from node 0 at the rendezvous 127.0.0.1:{port}: " in run.err
    assert "Connection refused" in run.err


def test_another_program_at_the_rendezvous(node, port):
    with socket.create_server(("127.0.0.1", port)) as server:

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH\r\n")
                connection.recv(1 << 16)

        thread = threading.Thread(target=serve)
        thread.start()
        run = node(1, 2)
        assert run.wait() == 1
        thread.join()
    assert f"expected a `towerpack launch` at 127.0.0.1:{port}, received something" in run.err


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("0.0.0.0:{}", "which means all: give the address"),
        ("192.0.2.1:{}", "Give --rendezvous an address of node 0"),
        ("host", "expected HOST:PORT, received 'host'"),
    ],
)
def test_a_rendezvous_that_cannot_be(launch, place, words):
    place = place.format(free_port())
    run = launch(FACTS, "--nnodes", 2, "--node-rank", 0, "--rendezvous", place)
    assert run.wait() == 1
    assert words in run.err
    assert "Traceback" not in run.err


# Rank 0 stays until the test has lost node 1, like a rank that notices the loss late.
LOSE = (
    FACTS
    + """
progress.beat(1)
if not attempt:
    wait_for("lost" if rank == 0 else "never")
    sys.exit(75)
"""
)


def test_a_node_that_was_killed_comes_back(node):
    zero, one = node(0, 2, LOSE), node(1, 2, LOSE)
    zero.note("facts-0-0")
    one.note("facts-1-0")
    one.kill()
    one.wait()
    # It comes back twice, and the first time is killed while node 0 cannot answer.
    again = node(1, 2, LOSE)
    eventually(lambda: has_connection(again))
    again.kill()
    again = node(1, 2, LOSE)
    eventually(lambda: has_connection(again))
    (zero.directory / "lost").touch()
    assert [zero.wait(), again.wait()] == [0, 0], zero.err + again.err
    assert "attempt 1, rank 1 of 2" in zero.log(1)
    assert "was refused" not in zero.err


def has_connection(run: Launched) -> bool:
    """Whether the supervisor has a connection to another one."""
    return any(established(inode) for inode in inodes(run.process.pid))


def inodes(pid: int) -> set[str]:
    found = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            link = os.readlink(path)
        except OSError:
            continue
        if link.startswith("socket:["):
            found.add(link.removeprefix("socket:[").removesuffix("]"))
    return found


def established(inode: str) -> bool:
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(fields[9] == inode and fields[3] == "01" for fields in map(str.split, lines))


def test_node_0_comes_back(node):
    code = LOSE.replace("rank == 0", "rank == 1")
    zero, one = node(0, 2, code), node(1, 2, code)
    token = json.loads(zero.note("facts-0-0"))[1]
    one.note("facts-1-0")
    zero.kill()
    zero.wait()
    (one.directory / "lost").touch()
    eventually(lambda: "attempt 0 on this node: ranks were asked to end" in one.err)
    zero = node(0, 2, code)
    assert [zero.wait(), one.wait()] == [0, 0], zero.err + one.err
    # It has learned the name of the run from the other node, so the run can find its checkpoints.
    assert json.loads(zero.note("facts-0-1"))[1] == token.removesuffix("-0") + "-1"


def test_node_0_does_not_come_back(node):
    code = FACTS + "if rank:\n    wait_for('lost')\n    sys.exit(4)\ntime.sleep(1000)"
    zero = node(0, 2, code)
    one = node(1, 2, code, "--rendezvous-timeout", 1)
    zero.note("facts-0-0")
    one.note("facts-1-0")
    zero.kill()
    zero.wait()
    (one.directory / "lost").touch()
    assert one.wait() == 4
    assert "no answer from node 0" in one.err
    assert "the run ends: nodes are missing" in one.err


def test_a_node_waits_for_one_whose_ranks_continue(node):
    """Longer than for a node that is not there: node 0 evaluates at the end."""
    code = FACTS + "if rank == 0:\n    wait_for('evaluated')"
    zero, one = node(0, 2, code), node(1, 2, code, "--rendezvous-timeout", 0.5)
    eventually(lambda: "attempt 0 on this node: all ranks are done" in one.err)
    eventually(lambda: has_connection(one))
    with pytest.raises(TimeoutError):
        wait_briefly(one)
    (zero.directory / "evaluated").touch()
    assert [zero.wait(), one.wait()] == [0, 0]


def wait_briefly(run: Launched) -> None:
    """A multiple of the time-out of the rendezvous."""
    descriptor = os.pidfd_open(run.process.pid)
    try:
        if not select.select([descriptor], [], [], 2)[0]:
            raise TimeoutError
    finally:
        os.close(descriptor)


def test_a_signal_ends_the_wait_for_other_nodes(node):
    for rank, number in ((0, signal.SIGINT), (1, signal.SIGTERM)):
        run = node(rank, 2)
        eventually(lambda run=run: "the output of each rank is in" in run.err)
        run.process.send_signal(number)
        assert run.wait() == 128 + number
