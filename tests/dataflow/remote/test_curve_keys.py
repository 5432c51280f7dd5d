import pickle

import pytest
import zmq
from zmq.utils import z85

from towerpack.dataflow.remote import CurveKeys, RemoteDataZMQ, send_dataflow_zmq
from towerpack.dataflow.remote.curve_keys import answer_admission


def test_keys_of_pyzmq_fit():
    public, secret = zmq.curve_keypair()
    keys = CurveKeys(public, secret, public)
    assert keys.public.encode() == public
    assert keys.peers == {public.decode()}
    assert pickle.loads(pickle.dumps(keys)) == keys


def test_the_secret_is_not_shown():
    keys = CurveKeys.generate()
    assert keys.secret not in repr(keys)
    assert keys.secret not in str(
        RemoteDataZMQ("ipc://x", keys=keys.with_peers(keys.public)).endpoints
    )


def test_wrong_keys_are_named():
    one, other = CurveKeys.generate(), CurveKeys.generate()
    with pytest.raises(ValueError, match="do not belong together"):
        CurveKeys(one.public, other.secret)
    with pytest.raises(ValueError, match="expected a public key of 40 characters in Z85") as caught:
        CurveKeys("short", one.secret)
    assert one.secret not in str(caught.value)
    with pytest.raises(ValueError, match=r"expected a peer's key.*received NoneType"):
        CurveKeys(one.public, one.secret, frozenset([None]))


def test_each_end_must_know_the_other():
    keys = CurveKeys.generate()
    with pytest.raises(ValueError, match="expected the public keys of the ends that may connect"):
        next(iter(RemoteDataZMQ("ipc://x", keys=keys)))
    with pytest.raises(ValueError, match="expected one peer, the public key of the end that binds"):
        send_dataflow_zmq([[1]], "ipc://x", keys=keys)


def test_F17_only_listed_keys_are_admitted():
    server, client, other = (CurveKeys.generate() for _ in range(3))
    keys = server.with_peers(client.public)

    def status(*request):
        return answer_admission(list(request), keys)[2]

    head = (b"1.0", b"7", b"", b"127.0.0.1", b"")
    assert status(*head, b"CURVE", z85.decode(client.public)) == b"200"
    assert status(*head, b"CURVE", z85.decode(other.public)) == b"400"
    assert status(*head, b"CURVE", z85.decode(server.public)) == b"400"
    assert status(*head, b"NULL") == b"400"
    assert status(*head, b"PLAIN", b"user", b"password") == b"400"
    assert status(b"1.0") == b"400"
    assert answer_admission([*head, b"NULL"], keys)[1] == b"7"
