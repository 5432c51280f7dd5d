"""The supervisors of several nodes meet before each attempt: addresses, outcomes, one decision.

Node 0 listens (`node0.py`). Each other supervisor connects, sends one line of JSON and receives
one. Lines are bounded, nothing is unpickled, and their content decides only which addresses the
ranks use and whether they start. Whoever reaches the port can take part, so it belongs in a private
network.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from towerpack.core import logger
from towerpack.launch.restarts import Entry, Plan, RendezvousError, Restarts

LONGEST_HELLO = 1 << 18  # bytes: a traceback, and the addresses of one node
LONGEST_ANSWER = 1 << 24  # the addresses of all nodes
CHUNK = 1 << 16
RETRY_SECONDS = 0.5
FIRST_REPORT_SECONDS = 10.0  # and then after twice that, and so on
SEND_SECONDS = 10.0  # for a line that fits into the buffers of a connection
LOOPBACK = "127.0.0.1"
# After a machine was lost, its connections look open. The kernel notices it after these seconds of
# silence, and this number of probes.
KEEP_ALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4))


@dataclass(frozen=True)
class Hello:
    job: str
    nodes: int
    entry: Entry


@dataclass(frozen=True)
class Answer:
    plan: Plan | None = None
    refused: str = ""


def free_addresses(host: str, count: int) -> list[str]:
    """Free ports of a host, found by binding them. Another program may take one afterwards."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    name = f"[{host}]" if ":" in host else host
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server((host, 0), family=family))
            for _ in range(count)
        ]
        return [f"{name}:{server.getsockname()[1]}" for server in servers]


def split_address(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT.

    >>> split_address("[::1]:2000")
    ('::1', 2000)
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"expected HOST:PORT, received {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def keep_alive(connection: socket.socket) -> None:
    """Has the kernel break a connection whose other machine is lost."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class OneNode:
    """The meeting of a supervisor that is alone. The ranks use loopback."""

    def __init__(self, restarts: Restarts):
        self.restarts = restarts

    def agree(self, entry: Entry, ranks: int) -> Plan:
        return self.restarts.plan([replace(entry, addresses=free_addresses(LOOPBACK, ranks))])

    def peers(self) -> list[socket.socket]:
        return []


class OtherNode:
    """The meeting of every other node: it connects to node 0 at `place`.

    After an attempt it waits as long as it is connected. Node 0 limits how long it waits for the
    others, and its own ranks may continue for long, for example with a last evaluation.
    """

    def __init__(self, place: str, job: str, nodes: int, seconds: float):
        self.place, self.job, self.nodes, self.seconds = place, job, nodes, seconds
        self.address = split_address(place)
        self._error: OSError | None = None  # of the last connection
        self._connection: socket.socket | None = None  # through which the last plan came

    def peers(self) -> list[socket.socket]:
        return [self._connection] if self._connection else []

    def agree(self, entry: Entry, ranks: int) -> Plan:
        """Waits for the plan of node 0; raises RendezvousError at the time-out or if refused."""
        wait = Wait(self.seconds, self._describe)
        if entry.failed:
            self._keep(None)
        while True:
            with contextlib.ExitStack() as stack:
                try:
                    connection = socket.create_connection(self.address, timeout=SEND_SECONDS)
                    stack.enter_context(connection)
                    begin = time.monotonic()
                    try:
                        plan = self._exchange(connection, entry, ranks)
                    finally:
                        wait.begin += time.monotonic() - begin
                except OSError as error:
                    self._error = error
                else:
                    stack.pop_all()
                    self._keep(connection)
                    return plan
            time.sleep(min(RETRY_SECONDS, wait.seconds()))

    def _keep(self, connection: socket.socket | None) -> None:
        if self._connection:
            self._connection.close()
        self._connection = connection

    def _describe(self) -> str:
        return f"no answer from node 0 at the rendezvous {self.place}: {self._error}"

    def _exchange(self, connection: socket.socket, entry: Entry, ranks: int) -> Plan:
        """Raises OSError if node 0 leaves without an answer."""
        keep_alive(connection)
        entry = replace(entry, addresses=free_addresses(connection.getsockname()[0], ranks))
        hello = Hello(self.job, self.nodes, entry)
        connection.sendall(msgspec.json.encode(hello) + b"\n")
        text = f"node 0 is at the rendezvous {self.place}, but not all nodes are ready to start"
        # Node 0 gives up first, because it knows which nodes are missing.
        limit = None if entry.outcome else self.seconds + SEND_SECONDS
        wait, data = Wait(limit, lambda: text), b""
        while not data.endswith(b"\n"):
            connection.settimeout(wait.seconds())
            with contextlib.suppress(TimeoutError):
                part = connection.recv(CHUNK)
                if not part or len(data) > LONGEST_ANSWER:
                    raise ConnectionResetError("it closed the connection")
                data += part
        try:
            answer = msgspec.json.decode(data, type=Answer)
        except msgspec.DecodeError as error:
            raise RendezvousError(
                f"expected a `towerpack launch` at {self.place}, received something else: {error}"
            ) from error
        if answer.plan is None:
            raise RendezvousError(answer.refused)
        return answer.plan


class Wait:
    """Limits a wait, and logs from time to time what it waits for. None is no limit."""

    def __init__(self, limit: float | None, describe: Callable[[], str]):
        self.limit, self.describe = limit, describe
        self.begin = time.monotonic()
        self._next_report = FIRST_REPORT_SECONDS

    def seconds(self) -> float:
        """How long to wait before the next call; raises RendezvousError when the time is over."""
        passed = time.monotonic() - self.begin
        if self.limit is not None and passed >= self.limit:
            raise RendezvousError(
                f"{self.describe()}. {self.limit:g} s have passed (--rendezvous-timeout). Check "
                "that all nodes were started with the same --nnodes and --rendezvous, and that "
                "they reach that address"
            )
        if passed >= self._next_report:
            limit = f" of {self.limit:g} s" if self.limit is not None else " s"
            logger.info("%s; waiting for %.0f%s", self.describe(), passed, limit)
            self._next_report *= 2
        until = self._next_report if self.limit is None else min(self.limit, self._next_report)
        return max(0.001, until - passed)
