"""What goes in comes out exact, or is refused with the component's name (B2)."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from towerpack.core import codec
from towerpack.core.codec import DecodeError, EncodeError, decode, encode, encode_parts

DTYPES = st.one_of(
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    hnp.complex_number_dtypes(endianness="?", sizes=(64,)),
    hnp.boolean_dtypes(),
    hnp.byte_string_dtypes(min_len=1, max_len=5),
    hnp.unicode_string_dtypes(min_len=1, max_len=5, endianness="?"),
    hnp.datetime64_dtypes(),
    hnp.timedelta64_dtypes(),
)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**80), 2**80),
    st.floats(),
    st.text(),
    st.binary(max_size=600),
    hnp.arrays(DTYPES, ()).map(lambda array: array[()]),
)
TREES = st.recursive(
    st.one_of(SCALARS, ARRAYS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=4), inner, max_size=4),
        st.dictionaries(st.integers(-9, 9), inner, max_size=4),
    ),
    max_leaves=12,
)


def same(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            same(left, right)
    elif isinstance(one, np.ndarray | np.generic):
        assert one.dtype == other.dtype
        assert one.dtype.byteorder == other.dtype.byteorder
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()
    elif isinstance(one, float):
        assert np.float64(one).tobytes() == np.float64(other).tobytes()
    else:
        assert one == other


@given(TREES)
def test_B2_round_trip(value):
    data = encode(value)
    assert b"".join(bytes(part) for part in encode_parts(value)) == data
    same(decode(data), value)
    same(decode(bytearray(data)), value)


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0),
        np.arange(20)[::3],
        np.arange(20)[::-1],
        np.arange(12).reshape(3, 4)[:, 1:3],
        np.zeros((0, 5), ">i2"),
        np.broadcast_to(np.arange(3), (4, 3)),
        np.array(3.5),
        np.zeros(3, ml_dtypes.bfloat16) + ml_dtypes.bfloat16(1.5),
        np.arange(4).astype(ml_dtypes.float8_e4m3fn),
        np.arange(4).astype(ml_dtypes.int4),
        np.array([b"", b"abc"]),
        np.array(["", "äö\0x"]),
        np.ma.masked_array([1, 2], [0, 0]).data,
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_B2_memory_orders_and_unusual_dtypes(array):
    again = decode(encode([array]))[0]
    assert (again.dtype, again.shape) == (array.dtype, array.shape)
    assert again.tobytes() == array.tobytes()
    if array.flags.f_contiguous and not array.flags.c_contiguous:
        assert again.flags.f_contiguous


def test_arrays_are_read_only_views_where_they_can_be():
    data = encode([np.arange(1000)])
    array = decode(data)[0]
    assert not array.flags.owndata
    assert not array.flags.writeable


def test_arrays_lie_on_their_alignment():
    buffer = np.zeros(4096, np.uint8)
    data = encode([np.arange(3, dtype=np.uint8), np.arange(100.0)])
    start = -buffer.ctypes.data % codec.ALIGNMENT
    buffer[start : start + len(data)] = np.frombuffer(data, np.uint8)
    _, array = decode(memoryview(buffer)[start : start + len(data)])
    assert array.ctypes.data % codec.ALIGNMENT == 0


def test_encode_parts_does_not_copy_arrays():
    array = np.arange(1000)
    parts = encode_parts([array])
    assert any(isinstance(part, np.ndarray) and np.shares_memory(part, array) for part in parts)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1, object()], r"component \[1\] is a object; expected an array"),
        ({"a": [np.array([None])]}, r"component \['a'\]\[0\] has dtype object"),
        ([np.zeros(2, [("x", "i4")])], r"component \[0\] has dtype .*split its fields"),
        ({"a": {(1, 2): 3}}, r"component \['a'\].*key \(1, 2\)"),
        ([1j], r"component \[0\] is a complex"),
        (["\ud800"], r"component \[0\].*Unicode"),
    ],
)
def test_B2_what_cannot_travel_is_named(value, words):
    with pytest.raises(EncodeError, match=words):
        encode(value)


def test_a_record_that_contains_itself_is_refused():
    loop = []
    loop.append(loop)
    with pytest.raises(EncodeError, match="nested too deep"):
        encode(loop)


@given(TREES, st.data())
def test_every_flipped_bit_is_noticed(value, data):
    record = bytearray(encode(value))
    position = data.draw(st.integers(0, len(record) * 8 - 1))
    record[position // 8] ^= 1 << position % 8
    with pytest.raises(DecodeError):
        decode(record)


@given(TREES, st.data())
def test_every_truncation_is_noticed(value, data):
    record = encode(value)
    with pytest.raises(DecodeError):
        decode(record[: data.draw(st.integers(0, len(record) - 1))])
