"""B2: what is stacked is exact, or an error names component, datapoint, expected and received."""

import enum
from collections import namedtuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from towerpack.dataflow import BatchData, DataFromList
from towerpack.dataflow.stacking import SMALL_ROW, BatchError, list_rows, stack_rows

Pair = namedtuple("Pair", ["image", "label"])

DTYPES = st.one_of(
    hnp.integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    hnp.complex_number_dtypes(endianness="?"),
    hnp.boolean_dtypes(),
    hnp.unicode_string_dtypes(min_len=1, max_len=4),
    hnp.datetime64_dtypes(),
)


@st.composite
def rows_of_one_shape(draw):
    dtype = draw(DTYPES)
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    rows = draw(st.lists(hnp.arrays(dtype, shape), min_size=1, max_size=6))
    if draw(st.booleans()):
        rows = [np.asfortranarray(row) for row in rows]
    if draw(st.booleans()) and len(shape):
        rows = [row[::-1] for row in rows]
    return rows


@given(rows_of_one_shape())
def test_B2_stacking_is_exact(rows):
    (batch,) = stack_rows([[row] for row in rows])
    assert batch.dtype == rows[0].dtype
    assert batch.shape == (len(rows), *rows[0].shape)
    assert batch.tobytes() == b"".join(row.tobytes() for row in rows)


@pytest.mark.parametrize(
    "dtype", [">f4", ">i2", ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, "M8[ms]"]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (40, 40)])
def test_B2_unusual_dtypes_and_empty_arrays(dtype, shape):
    rows = [np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype) for _ in range(3)]
    (batch,) = stack_rows([[row] for row in rows])
    assert (batch.dtype, batch.shape) == (np.dtype(dtype), (3, *shape))
    assert batch.tobytes() == b"".join(row.tobytes() for row in rows)


def test_B2_bfloat16_scalars():
    (batch,) = stack_rows([[ml_dtypes.bfloat16(1.5)], [ml_dtypes.bfloat16(-2)]])
    assert batch.dtype == ml_dtypes.bfloat16
    assert batch.tolist() == [1.5, -2.0]


@pytest.mark.parametrize("size", [4, SMALL_ROW])
def test_B2_fortran_and_strided_rows(size):
    array = np.arange(4 * size, dtype=np.float32).reshape(4, size)
    for row in (np.asfortranarray(array), array[:, ::2], array.T, array[::-1]):
        (batch,) = stack_rows([[row], [row + 1]])
        assert (batch[0] == row).all()
        assert (batch[1] == row + 1).all()


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([1, 2], np.int32, [1, 2]),
        ([1, 2**40], np.int64, [1, 2**40]),
        ([-(2**31), 2**31 - 1], np.int32, [-(2**31), 2**31 - 1]),
        ([1.5, 2], np.float32, [1.5, 2.0]),
        ([True, False], np.bool_, [True, False]),
        (["a", "bcd"], "<U3", ["a", "bcd"]),
        ([b"a", b"bcd"], "S3", [b"a", b"bcd"]),
        ([np.float64(0.1), np.float64(0.2)], np.float64, [0.1, 0.2]),
        ([np.uint8(1), np.uint8(255)], np.uint8, [1, 255]),
        ([np.array("ab"), np.array("c")], "<U2", ["ab", "c"]),
        ([enum.IntEnum("E", "A B").A, 5], np.int32, [1, 5]),
    ],
)
def test_scalars(values, dtype, expected):
    (batch,) = stack_rows([[value] for value in values])
    assert batch.dtype == dtype
    assert batch.tolist() == expected


def test_structures_are_kept():
    rows = [{"a": (np.zeros(2), [1]), "b": "x"}, {"a": (np.ones(2), [2]), "b": "yz"}]
    batch = stack_rows(rows)
    assert list(batch) == ["a", "b"]
    assert isinstance(batch["a"], tuple)
    assert batch["a"][0].tolist() == [[0, 0], [1, 1]]
    assert batch["a"][1][0].tolist() == [1, 2]
    pair = stack_rows([Pair(np.zeros(1), 1), Pair(np.ones(1), 2)])
    assert isinstance(pair, Pair)
    assert pair.label.tolist() == [1, 2]
    assert stack_rows([np.arange(2), np.arange(2)]).shape == (2, 2)
    assert stack_rows([(1, 2), (3, 4)])[1].tolist() == [2, 4]


def test_rows_go_where_allocate_says():
    made = []

    def allocate(shape, dtype):
        made.append(np.zeros(shape, dtype))
        return made[-1]

    batch = stack_rows([[np.ones(3), 1, "a"], [np.ones(3), 2, "b"]], allocate)
    assert all(one is other for one, other in zip(batch, made, strict=True))


ERRORS = [
    (
        [[np.zeros(3)], [np.zeros(4)]],
        "component [0] of datapoint 11: expected float64 of shape (3,) like the first of its "
        "batch, received float64 of shape (4,)",
    ),
    (
        [[np.zeros(3)], [np.zeros(3, np.float32)]],
        "component [0] of datapoint 11: expected float64 of shape (3,) like the first of its "
        "batch, received float32 of shape (3,)",
    ),
    (
        [[np.zeros(3, "<f4")], [np.zeros(3, ">f4")]],
        "expected float32 of shape (3,) like the first of its batch, received >f4 of shape (3,)",
    ),
    ([[np.zeros((2, 2))], [np.zeros(4)]], "received float64 of shape (4,)"),
    (
        [[np.zeros(1)], [7]],
        "expected float64 of shape (1,) like the first of its batch, received 7",
    ),
    ([[7], [np.zeros(1)]], "expected 7 (int) like the first of its batch, received float64"),
    ([[np.int64(1)], [np.float32(1)]], "expected int64 of shape () like the first"),
    (
        [[np.int64(1)], [1]],
        "expected int64 of shape () like the first of its batch, received 1 (int)",
    ),
    ([[1], ["a"]], "expected 1 (int) like the first of its batch, received 'a' (str)"),
    ([[True], [2]], "expected True (bool) like the first of its batch, received 2 (int)"),
    ([["a"], [b"a"]], "expected 'a' (str) like the first of its batch, received b'a' (bytes)"),
    ([[None], [None]], "expected numbers, strings or arrays of them, received None (NoneType)"),
    ([[np.array([None])], [np.array([None])]], "received an array of Python objects"),
    ([[{1, 2}], [{3}]], "component [0] of datapoint 10: expected numbers, strings or arrays"),
    ([[2**70], [1]], "does not fit into int64"),
    ([[-(2**70)], [1]], "does not fit into int64"),
    ([[b"a"], [b"a\0"]], "component [0] of datapoint 11 ends with a zero"),
    ([[np.zeros(2, "M8[s]")], [np.zeros(2, "M8[ms]")]], "received datetime64[ms] of shape (2,)"),
    ([[np.ma.masked_array([1], [1])]] * 2, "is a masked array"),
    (
        [[1, 2], [1]],
        "datapoint 11 is not built like the first of its batch: the datapoint: expected "
        "2 components, received 1",
    ),
    ([[1], (1,)], "datapoint 11 is not built like the first"),
    ([{"a": 1}, {"b": 1}], "expected keys ['a'], received keys ['b']"),
    ([[1, [2]], [1, [2, 3]]], "component [1]: expected 1 components, received 2"),
    ([[1, [2]], [1, 2]], "component [1]: expected a list of 1, received a leaf (int)"),
    ([[1, 2], [1, [2]]], "expected 2 (int) like the first of its batch, received [2] (list)"),
    ([[1], None], "datapoint 11 was dropped by a function that returned None"),
    ([None, None], "datapoint 10 was dropped by a function that returned None"),
]


@pytest.mark.parametrize(("rows", "words"), ERRORS, ids=[words[:50] for _, words in ERRORS])
def test_B2_errors_name_everything(rows, words):
    with pytest.raises(BatchError) as caught:
        stack_rows(rows, indices=[10, 11])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: [x[0][:2], x[1]],
        lambda x: [x[0].astype("f8"), x[1]],
        lambda x: [x[0]],
        lambda x: [*x, 1],
        lambda x: {"a": x[0]},
        lambda x: [x[0], None],
        lambda x: [x[0].astype(object), x[1]],
    ],
    ids=["shape", "dtype", "fewer", "more", "dict", "none", "object"],
)
@pytest.mark.parametrize("at", [8, 10, 14])
def test_B2_a_change_in_the_middle_of_a_stream_names_the_datapoint(change, at):
    points = [[np.zeros(3, np.float32), i] for i in range(20)]
    points[at] = change(points[at])
    flow = BatchData(DataFromList(points, shuffle=False), 4)
    for source in (flow, BatchData(iter_only(points), 4)):
        iterator = source.iterate()
        for _ in range(at // 4):
            next(iterator)
        with pytest.raises(BatchError) as caught:
            next(iterator)
        culprit = at if at % 4 else at + 1  # the first of a batch sets the rule for the others
        assert f"datapoint {culprit}" in str(caught.value) or f"datapoint {at}" in str(caught.value)


def iter_only(points):
    return (point for point in points)


def test_list_rows():
    assert list_rows([[np.zeros(1), "a"], [np.zeros(2), "b"]])[1] == ["a", "b"]
    assert list_rows([{"a": 1}, {"a": 2}]) == {"a": [1, 2]}
    assert list_rows([(1, 2), (3, 4)]) == ([1, 3], [2, 4])
    assert isinstance(list_rows([Pair(1, 2)]), Pair)
    assert list_rows(["x", "y"]) == ["x", "y"]
    for wrong in ([[1], [1, 2]], [{"a": 1}, {"b": 1}], [[1], (1,)], [None, None]):
        with pytest.raises(BatchError):
            list_rows(wrong)


class Tensor:
    """As an array of another library: something numpy can take over."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


def test_arrays_of_other_libraries():
    (batch,) = stack_rows([[Tensor([1.0, 2.0])], [Tensor([3.0, 4.0])]])
    assert batch.tolist() == [[1, 2], [3, 4]]
