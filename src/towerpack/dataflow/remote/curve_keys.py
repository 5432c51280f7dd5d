"""Who may connect: CURVE keys, and the rule that without them an end binds to loopback only."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import zmq
from zmq.utils import z85

ZAP_ENDPOINT = "inproc://zeromq.zap.01"  # where libzmq asks whether a key may connect
ZAP_VERSION = b"1.0"
KEY_LENGTH = 40  # characters: 32 bytes in Z85
LOOPBACK_NAMES = ("localhost", "lo", "lo0")


@dataclass(frozen=True)
class CurveKeys:
    """The key pair of one end, and the public keys of the ends that it talks to.

    With keys all traffic is encrypted, and each end proves its identity. The end that binds admits
    only the keys in `peers`. The end that connects has exactly one peer, the end that binds. Keys
    are text in Z85, as `zmq.curve_keypair()` makes them and `zmq.auth.load_certificate` reads them
    from a file.

    >>> server, client = CurveKeys.generate(), CurveKeys.generate()
    >>> bound = server.with_peers(client.public)
    >>> connected = client.with_peers(server.public)
    >>> server.secret in repr(server)
    False
    """

    public: str
    secret: str = field(repr=False)
    peers: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        peers: Any = self.peers
        if isinstance(peers, str | bytes):
            peers = [peers]
        object.__setattr__(self, "public", _checked_key(self.public, "public"))
        object.__setattr__(self, "secret", _checked_key(self.secret, "secret"))
        object.__setattr__(self, "peers", frozenset(_checked_key(key, "peer's") for key in peers))
        if zmq.curve_public(self.secret.encode()).decode() != self.public:
            raise ValueError("the public and the secret key do not belong together")

    @classmethod
    def generate(cls) -> CurveKeys:
        """Returns a new pair."""
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())

    def with_peers(self, *peers: str | bytes) -> CurveKeys:
        """Returns the same pair with these peers."""
        return CurveKeys(
            self.public, self.secret, frozenset(_checked_key(key, "peer's") for key in peers)
        )


def secure(socket: zmq.Socket, keys: CurveKeys, bind: bool) -> None:
    """Makes a socket encrypt its traffic and check the key of the other end."""
    socket.curve_publickey = keys.public.encode()
    socket.curve_secretkey = keys.secret.encode()
    if bind:
        if not keys.peers:
            raise ValueError(
                "expected the public keys of the ends that may connect, received none; use "
                "keys.with_peers(public key, ...)"
            )
        socket.curve_server = True
    else:
        if len(keys.peers) != 1:
            raise ValueError(
                "expected one peer, the public key of the end that binds, received "
                f"{len(keys.peers)}; use keys.with_peers(its public key)"
            )
        (server,) = keys.peers
        socket.curve_serverkey = server.encode()


def answer_admission(request: list[bytes], keys: CurveKeys) -> list[bytes]:
    """Answers libzmq whether a key may connect (the ZAP protocol)."""
    number = request[1] if len(request) > 1 else b""
    admitted = (
        len(request) == 7
        and request[0] == ZAP_VERSION
        and request[5] == b"CURVE"
        and z85.encode(request[6]).decode() in keys.peers
    )
    status = [b"200", b"OK"] if admitted else [b"400", b"unknown key"]
    return [ZAP_VERSION, number, *status, b"", b""]


def check_address(address: str, bind: bool, keys: CurveKeys | None) -> str:
    """Returns the address, if this end may use it.

    >>> check_address("tcp://*:5555", bind=True, keys=None)
    Traceback (most recent call last):
    ...
    ValueError: tcp://*:5555 can be reached from other machines, by anyone: bind to loopback
    (tcp://127.0.0.1:PORT, through an ssh tunnel if need be), or pass keys=CurveKeys(...) at both
    ends
    """
    parts = urlsplit(address if isinstance(address, str) else "")
    if parts.scheme not in ("tcp", "ipc"):
        raise ValueError(
            "expected an address like 'tcp://127.0.0.1:5555' or 'ipc:///path', received "
            f"{address!r}"
        )
    if bind and parts.scheme == "tcp" and keys is None and not _is_loopback(parts.netloc):
        raise ValueError(
            f"{address} can be reached from other machines, by anyone: bind to loopback "
            "(tcp://127.0.0.1:PORT, through an ssh tunnel if need be), or pass keys=CurveKeys(...) "
            "at both ends"
        )
    return address


def _is_loopback(location: str) -> bool:
    host = location.rpartition(":")[0].strip("[]")
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _checked_key(key: str | bytes, which: str) -> str:
    text = key.decode("ascii", "replace") if isinstance(key, bytes) else key
    if not isinstance(text, str) or len(text) != KEY_LENGTH:
        raise ValueError(
            f"expected a {which} key of {KEY_LENGTH} characters in Z85, received "
            f"{type(key).__name__} of length {len(key) if hasattr(key, '__len__') else '?'}"
        )
    return text
