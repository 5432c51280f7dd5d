"""The rendezvous at node 0, which decides what the supervisors of all nodes do next."""

from __future__ import annotations

import contextlib
import ipaddress
import selectors
import socket
import time
from dataclasses import replace

import msgspec

from towerpack.core import logger
from towerpack.launch.rendezvous import (
    CHUNK,
    LONGEST_HELLO,
    RETRY_SECONDS,
    SEND_SECONDS,
    Answer,
    Hello,
    Wait,
    free_addresses,
    keep_alive,
    split_address,
)
from towerpack.launch.restarts import Entry, Plan, RendezvousError, Restarts


class Node0:
    """The meeting at node 0. It listens at `place` all the time, and only there."""

    def __init__(self, place: str, job: str, nodes: int, seconds: float, restarts: Restarts):
        self.place, self.job, self.nodes = place, job, nodes
        self.seconds, self.restarts = seconds, restarts
        self._listener = _listen(place, seconds, nodes)
        self._host = self._listener.getsockname()[0]
        self._guests: list[socket.socket] = []  # who have the last plan

    def peers(self) -> list[socket.socket]:
        return self._guests

    def agree(self, entry: Entry, ranks: int) -> Plan:
        """Waits for all nodes, sends the plan to each; raises RendezvousError at the time-out."""
        if entry.failed:
            self._keep([])
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            guests: dict[int, _Guest] = {}
            try:
                self._collect(selector, guests)
                entry = replace(entry, addresses=free_addresses(self._host, ranks))
                entries = [guest.entry for guest in guests.values() if guest.entry]
                plan = self.restarts.plan([entry, *entries])
                for guest in guests.values():
                    guest.answer(Answer(plan))
                self._keep([guest.connection for guest in guests.values()])
                return plan
            except RendezvousError as error:
                for guest in guests.values():
                    guest.answer(Answer(refused=str(error)))
                raise
            finally:
                for key in list(selector.get_map().values()):
                    if key.data is not None and key.data.connection not in self._guests:
                        key.data.connection.close()

    def _keep(self, connections: list[socket.socket]) -> None:
        for guest in self._guests:
            guest.close()
        self._guests = connections

    def _collect(self, selector: selectors.BaseSelector, guests: dict[int, _Guest]) -> None:
        def missing() -> str:
            absent = [str(node) for node in range(1, self.nodes) if node not in guests]
            return (
                f"{len(guests) + 1} of {self.nodes} nodes are at the rendezvous {self.place}; "
                f"missing: node {', '.join(absent)}"
            )

        wait = Wait(self.seconds, missing)
        while len(guests) < self.nodes - 1:
            for key, _ in selector.select(wait.seconds()):
                if key.data is None:
                    with contextlib.suppress(BlockingIOError, ConnectionError):  # it has gone
                        guest = _Guest(*self._listener.accept())
                        selector.register(guest.connection, selectors.EVENT_READ, guest)
                elif not key.data.read() or not self._admit(key.data, guests):
                    selector.unregister(key.data.connection)
                    key.data.connection.close()
            # Also those that came, went and came again while the ranks of this node were running.
            for node in [node for node, guest in guests.items() if guest.has_left()]:
                del guests[node]

    def _admit(self, guest: _Guest, guests: dict[int, _Guest]) -> bool:
        """Adds a guest whose line is complete; False if it cannot take part."""
        if guest.entry is not None or b"\n" not in guest.data:
            return True
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
        node, start = hello.entry.node, hello.entry.token.rpartition("-")[0]
        if hello.job != self.job:
            return (
                f"the rendezvous {self.place} belongs to job {self.job!r}, and node {node} to job "
                f"{hello.job!r}; give each job its own port"
            )
        if start and self.restarts.job and start != self.restarts.job:
            return (
                f"the rendezvous {self.place} belongs to the start {self.restarts.job} of job "
                f"{self.job!r}, and node {node} to its start {start}; give each its own port"
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
        if node in guests and not guests[node].has_left():
            return (
                f"{guests[node].name} and {guest.name} both are node {node}; give each node its "
                "own --node-rank"
            )
        return ""


def _listen(place: str, seconds: float, nodes: int) -> socket.socket:
    """Listens at one address of this node; retries while its name is not known.

    A cluster publishes the name of a node some seconds after the node has started.
    """
    host, port = split_address(place)
    wait = Wait(seconds, lambda: f"the name {host!r} of node 0 is not known here")
    while True:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            listener = socket.create_server((host, port), family=family, backlog=nodes)
            break
        except socket.gaierror:
            time.sleep(min(RETRY_SECONDS, wait.seconds()))
        except OSError as error:
            raise RendezvousError(
                f"expected to listen at {place} for the other nodes, received: {error}. Give "
                "--rendezvous an address of node 0 and a free port; if the port is in use, perhaps "
                "by another job, choose another one. Only one node has the rank 0"
            ) from error
    listener.setblocking(False)
    found = listener.getsockname()[0]
    address = ipaddress.ip_address(found.partition("%")[0])
    if address.is_unspecified:
        listener.close()
        raise RendezvousError(
            f"expected one address of this node, received {place}, which means all: give the "
            "address at which the other nodes reach it"
        )
    if address.is_loopback and host != found:
        logger.warning(
            "%s is %s on this node, which no other machine can reach: if there are others, "
            "give --rendezvous an IP address of node 0",
            host,
            found,
        )
    return listener


class _Guest:
    """A connection to node 0, and what came through it."""

    def __init__(self, connection: socket.socket, address: tuple):
        self.connection, self.data = connection, b""
        self.entry: Entry | None = None
        self.name = "the supervisor at " + ":".join(map(str, address[:2]))
        connection.setblocking(False)
        keep_alive(connection)

    def read(self) -> bool:
        """Reads what has come; False if the connection is closed or sends too much."""
        try:
            data = self.connection.recv(CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.data += data
        if len(self.data) > LONGEST_HELLO:
            logger.warning("%s was refused: its line is too long", self.name)
            return False
        return bool(data)

    def has_left(self) -> bool:
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:  # it is broken, or was closed here
            return True

    def answer(self, answer: Answer) -> None:
        """Sends a line. A node that has gone meanwhile is missing at the next rendezvous."""
        self.connection.settimeout(SEND_SECONDS)
        with contextlib.suppress(OSError):
            self.connection.sendall(msgspec.json.encode(answer) + b"\n")
