"""The supervisors of several nodes meet before each attempt: addresses, outcomes, one decision.

Node 0 listens. Each other supervisor connects, sends one line of JSON and receives one. Lines are
bounded, nothing is unpickled, and their content decides only which addresses the ranks use and
whether they start. Whoever reaches the port can take part, so it belongs in a private network.
"""

from __future__ import annotations

import contextlib
import ipaddress
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from towerpack.core import logger
from towerpack.launch.supervisor import Entry, Plan, RendezvousError, Restarts

LONGEST_HELLO = 1 << 18  # bytes: a traceback, and the addresses of one node
LONGEST_ANSWER = 1 << 24  # the addresses of all nodes
CHUNK = 1 << 16
RETRY_SECONDS = 0.5
REPORT_SECONDS = 10.0
SEND_SECONDS = 10.0  # for a line that fits into the buffers of a connection
LOOPBACK = "127.0.0.1"


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
        servers = [socket.create_server((host, 0), family=family) for _ in range(count)]
        for server in servers:
            stack.enter_context(server)
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


class OneNode:
    """The meeting of a supervisor that is alone. The ranks use loopback."""

    def __init__(self, restarts: Restarts):
        self.restarts = restarts

    def agree(self, entry: Entry, ranks: int) -> Plan:
        return self.restarts.plan([replace(entry, addresses=free_addresses(LOOPBACK, ranks))])


class Node0:
    """The meeting at node 0, which decides. It listens at `place` all the time, and only there."""

    def __init__(self, place: str, job: str, nodes: int, seconds: float, restarts: Restarts):
        self.place, self.job, self.nodes = place, job, nodes
        self.seconds, self.restarts = seconds, restarts
        host, port = split_address(place)
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._listener = socket.create_server((host, port), family=family, backlog=nodes)
        except OSError as error:
            raise RendezvousError(
                f"expected to listen at {place} for the other nodes, received: {error}. Give "
                "--rendezvous an address of node 0 and a free port; if the port is in use, perhaps "
                "by another job, choose another one"
            ) from error
        self._listener.setblocking(False)
        self._host = self._listener.getsockname()[0]
        address = ipaddress.ip_address(self._host)
        if address.is_unspecified:
            raise RendezvousError(
                f"expected one address of this node, received {place}, which means all: give the "
                "address at which the other nodes reach it"
            )
        if address.is_loopback and host != self._host:
            logger.warning(
                "%s is %s on this node, which no other machine can reach: if there are others, "
                "give --rendezvous an IP address of node 0",
                host,
                self._host,
            )

    def agree(self, entry: Entry, ranks: int) -> Plan:
        """Waits for all nodes, sends the plan to each; raises RendezvousError at the time-out."""
        entry = replace(entry, addresses=free_addresses(self._host, ranks))
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            guests: dict[int, _Guest] = {}
            try:
                self._collect(selector, guests)
                entries = [guest.entry for guest in guests.values() if guest.entry]
                plan = self.restarts.plan([entry, *entries])
                for guest in guests.values():
                    guest.answer(Answer(plan))
                return plan
            finally:
                for key in list(selector.get_map().values()):
                    if key.data is not None:
                        key.data.connection.close()

    def _collect(self, selector: selectors.BaseSelector, guests: dict[int, _Guest]) -> None:
        def missing() -> str:
            absent = [str(node) for node in range(1, self.nodes) if node not in guests]
            return (
                f"{len(guests) + 1} of {self.nodes} nodes are at the rendezvous {self.place}; "
                f"missing: node {', '.join(absent)}"
            )

        wait = _Wait(self.seconds, missing)
        while len(guests) < self.nodes - 1:
            for key, _ in selector.select(wait.seconds()):
                if key.data is None:
                    with contextlib.suppress(BlockingIOError, ConnectionError):
                        guest = _Guest(self._listener.accept()[0])
                        selector.register(guest.connection, selectors.EVENT_READ, guest)
                elif not key.data.read() or not self._admit(key.data, guests):
                    selector.unregister(key.data.connection)
                    key.data.connection.close()
                    for node in [node for node, guest in guests.items() if guest is key.data]:
                        del guests[node]

    def _admit(self, guest: _Guest, guests: dict[int, _Guest]) -> bool:
        """Adds a guest whose line is complete; False if it cannot take part."""
        if guest.entry is not None or b"\n" not in guest.data:
            return True
        refused = ""
        try:
            hello = msgspec.json.decode(guest.data, type=Hello)
            refused = self._refusal(hello, guest, guests)
        except msgspec.DecodeError as error:
            refused = f"expected the line of a `towerpack launch`, received something else: {error}"
        if refused:
            logger.warning("%s was refused: %s", guest.name, refused)
            guest.answer(Answer(refused=refused))
            return False
        guest.entry = hello.entry
        guests[hello.entry.node] = guest
        return True

    def _refusal(self, hello: Hello, guest: _Guest, guests: dict[int, _Guest]) -> str:
        node, token = hello.entry.node, hello.entry.token.rpartition("-")[0]
        expected = self.restarts.job or token
        if (hello.job, token or expected) != (self.job, expected):
            return (
                f"the rendezvous {self.place} belongs to job {self.job!r} {expected}, and node "
                f"{node} to job {hello.job!r} {token}; give each job its own port"
            )
        if hello.nodes != self.nodes:
            return (
                f"node 0 was started with --nnodes {self.nodes}, and node {node} with --nnodes "
                f"{hello.nodes}; start all nodes with the same number"
            )
        if not 0 < node < self.nodes:
            return (
                f"expected a node rank from 1 to {self.nodes - 1}, received {node} from "
                f"{guest.name}; node 0 is at {self.place}. Give each node its own --node-rank"
            )
        if node in guests:
            return (
                f"{guests[node].name} and {guest.name} both are node {node}; give each node its "
                "own --node-rank"
            )
        return ""


class _Guest:
    """A connection to node 0, and what came through it."""

    def __init__(self, connection: socket.socket):
        self.connection, self.data = connection, b""
        self.entry: Entry | None = None
        self.name = "the supervisor at " + ":".join(map(str, connection.getpeername()[:2]))
        connection.setblocking(False)

    def read(self) -> bool:
        """Reads what has come; False if the connection is closed or sends too much."""
        try:
            data = self.connection.recv(CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.data += data
        return bool(data) and len(self.data) <= LONGEST_HELLO

    def answer(self, answer: Answer) -> None:
        """Sends a line. A node that has gone meanwhile is missing at the next rendezvous."""
        self.connection.settimeout(SEND_SECONDS)
        with contextlib.suppress(OSError):
            self.connection.sendall(msgspec.json.encode(answer) + b"\n")


class OtherNode:
    """The meeting of every other node: it connects to node 0 at `place`."""

    def __init__(self, place: str, job: str, nodes: int, seconds: float):
        self.place, self.job, self.nodes, self.seconds = place, job, nodes, seconds
        self.address = split_address(place)

    def agree(self, entry: Entry, ranks: int) -> Plan:
        """Waits for the plan of node 0; raises RendezvousError at the time-out or if refused."""
        wait = _Wait(self.seconds, lambda: f"no answer from node 0 at the rendezvous {self.place}")
        while True:
            with contextlib.suppress(OSError):
                return self._exchange(entry, ranks, wait)
            time.sleep(min(RETRY_SECONDS, wait.seconds()))

    def _exchange(self, entry: Entry, ranks: int, wait: _Wait) -> Plan:
        """Raises OSError if node 0 is not there, or leaves without an answer."""
        with socket.create_connection(self.address, timeout=SEND_SECONDS) as connection:
            host = connection.getsockname()[0]
            entry = replace(entry, addresses=free_addresses(host, ranks))
            hello = Hello(self.job, self.nodes, entry)
            connection.sendall(msgspec.json.encode(hello) + b"\n")
            data = b""
            while not data.endswith(b"\n"):
                connection.settimeout(wait.seconds())
                with contextlib.suppress(TimeoutError):
                    part = connection.recv(CHUNK)
                    if not part or len(data) > LONGEST_ANSWER:
                        raise ConnectionResetError("node 0 left the rendezvous")
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


class _Wait:
    """Limits a wait, and logs from time to time what it waits for."""

    def __init__(self, limit: float, describe: Callable[[], str]):
        self.limit, self.describe = limit, describe
        self.begin = time.monotonic()
        self.reported = 0.0

    def seconds(self) -> float:
        """How long to wait before the next call; raises RendezvousError when the time is over."""
        passed = time.monotonic() - self.begin
        if passed >= self.limit:
            raise RendezvousError(
                f"{self.describe()}, after {self.limit:g} s. Check that all nodes were started "
                "with the same --nnodes and --rendezvous, and that they reach that address"
            )
        if passed >= self.reported + REPORT_SECONDS:
            self.reported = passed
            logger.info("%s (%.0f of %g s)", self.describe(), passed, self.limit)
        return max(0.001, min(self.limit, self.reported + REPORT_SECONDS) - passed)
