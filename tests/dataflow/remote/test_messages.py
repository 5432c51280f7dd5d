import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from towerpack.dataflow.remote.protocol import (
    MARK,
    MAX_FRAME,
    MAX_REASON,
    BadMessage,
    Data,
    Status,
    Take,
    pack,
    unpack,
)

number = st.integers(0, 2**62)
name = st.text(max_size=64)
messages = st.one_of(
    st.builds(
        Status,
        number,
        name,
        name,
        number,
        number,
        st.booleans(),
        st.booleans(),
        st.text(max_size=MAX_REASON),
    ),
    st.builds(Data, name, name, number, number, number),
    st.builds(Take, number, name, name, number, number, number, st.booleans(), st.booleans()),
)


@given(messages)
def test_there_and_back(message):
    frame = pack(message)
    assert len(frame) <= MAX_FRAME
    assert unpack(frame) == message


@given(messages, st.data())
def test_F17_any_flipped_bit_is_found(message, data):
    frame = bytearray(pack(message))
    bit = data.draw(st.integers(0, 8 * len(frame) - 1))
    frame[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadMessage):
        unpack(bytes(frame))


@given(st.binary(max_size=100))
@example(b"")
@example(MARK)
@example(b"\x93\xa4take" + b"\x91" * 5000)
@example(msgspec.msgpack.encode(["status", -1, "s"]))
@example(msgspec.msgpack.encode(["status", 1, "s" * 65]))
@example(msgspec.msgpack.encode(["status", 1.5, "s"]))
@example(msgspec.msgpack.encode(["data", "s", 1]))
@example(msgspec.msgpack.encode(["status", 1, "s", "", 0, 0, False, False, "x" * (MAX_REASON + 1)]))
@example(msgspec.msgpack.encode(["surprise"]))
@example(b"\x93\xa6status\x01\xa2\xff\xfe")  # text that is not UTF-8
@example(b"\x93\xa6status\x01\xa3\xed\xa0\x80")  # half of a surrogate pair
def test_F17_sealed_garbage_is_refused(body):
    import google_crc32c

    for frame in (body, MARK + google_crc32c.value(body).to_bytes(4, "little") + body):
        with pytest.raises(BadMessage):
            unpack(frame)
