"""Datapoints through shared memory: what comes out is what went in."""

from __future__ import annotations

import collections
import datetime

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.dataflow.laws import frozen
from towerpack.dataflow.workers.packing import PackError, pack_rows
from towerpack.dataflow.workers.shared_memory import SharedSlots, SlotWriter


@pytest.fixture(scope="module")
def slots():
    made = SharedSlots.create()
    yield made
    made.close()


def through(slots, rows, copy=False):
    writer = SlotWriter(slots, 1)
    packed, count, error = pack_rows(rows, writer)
    assert (count, error) == (len(rows), None)
    return packed.rows(slots.root(1, writer.position), copy=copy)


Point = collections.namedtuple("Point", "x y")
IMAGE = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
RECORD = np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")])

ROWS = {
    "arrays": [[IMAGE + i, np.float32(i)] for i in range(5)],
    "numbers": [[i, i / 2, i % 2 == 0, np.int8(i)] for i in range(5)],
    "large numbers": [[2**70, -(2**63), 2**63], [1, 2, 3]],
    "texts": [["", "grüß", b"", b"\x00\xff" * 1000, None], ["x", "y", b"z", b"", None]],
    "not valid text": [["\udcff"], ["fine"]],
    "dicts": [{"image": IMAGE, "label": i, "more": {"deep": [IMAGE[0], "a"]}} for i in range(3)],
    "tuples": [(IMAGE, (i, (i,))) for i in range(3)],
    "bare": [1, 2, 3],
    "bare arrays": [IMAGE, IMAGE + 1],
    "lists of numbers": [[IMAGE, [1, 2.5, "a", None, True], []], [IMAGE, [3], []]],
    "empty": [[], [], []],
    "empty containers": [[(), {}, []], [(), {}, []]],
    "nothing": [],
    "different shapes": [[np.zeros((i, 2))] for i in range(4)],
    "different dtypes": [[np.zeros(2, np.int8)], [np.zeros(2, np.float64)]],
    "different types": [[1], [1.0], ["1"], [None], [np.int32(1)], [np.ones(1)]],
    "different forms": [[1], [1, 2], (1, 2), {"a": 1}, {"b": 1}, {"a": 1}],
    "no dimensions": [[np.array(1.5)], [np.array(2.5)]],
    "no elements": [[np.zeros((0, 3)), np.zeros((3, 0))], [np.zeros((0, 3)), np.zeros((3, 0))]],
    "big-endian": [[np.arange(3, dtype=">i4"), np.dtype(">f8").type(1.5)]] * 2,
    "bfloat16": [[np.ones(3, ml_dtypes.bfloat16), ml_dtypes.bfloat16(1.5)]] * 2,
    "times": [[np.array(["2026-01-01"], "M8[ns]"), np.timedelta64(3, "s")]] * 2,
    "strings in arrays": [[np.array(["ab", "c"]), np.array([b"ab", b"c"]), np.str_("x")]] * 2,
    "records": [[RECORD, RECORD[0]], [RECORD, RECORD[1]]],
    "objects": [[datetime.date(2026, 1, 1), {1, 2}, Point(1, 2), 1 + 2j, np.array([None, "a"])]]
    * 2,
    "a key that is a tuple": [{(1, 2): IMAGE}],
    "strided": [[IMAGE[:, ::2], IMAGE[::-1]], [IMAGE[:, ::2], IMAGE[::-1]]],
}


@pytest.mark.parametrize("copy", [False, True], ids=["view", "copy"])
@pytest.mark.parametrize("name", ROWS)
def test_B2_what_comes_out_is_what_went_in(slots, name, copy):
    rows = ROWS[name]
    out = through(slots, rows, copy)
    assert [comparable(row) for row in out] == [comparable(row) for row in rows]


def comparable(row):
    if isinstance(row, np.ndarray) and row.dtype == object:
        return "objects", row.tolist()
    if type(row) in (list, tuple):
        return type(row), [comparable(value) for value in row]
    if isinstance(row, tuple):
        return type(row), row
    return frozen(row)


@pytest.mark.parametrize("count", [1, 3])
def test_B2_fortran_order_is_kept(slots, count):
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    for (out,) in through(slots, [[array]] * count):
        assert out.flags.f_contiguous and not out.flags.c_contiguous
        assert (out == array).all()


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters())
    | st.binary(max_size=300)
    | hnp.arrays(
        hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
    )
)
# Other keys make their dict travel as a pickle, and numpy's own loses the byte order of times.
keys = st.text(st.characters(codec="utf-8"), max_size=3) | st.integers(-(2**63), 2**63 - 1)
datapoints = st.recursive(
    leaves,
    lambda below: (
        st.lists(below, max_size=3)
        | st.lists(below, max_size=3).map(tuple)
        | st.dictionaries(keys, below, max_size=3)
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.lists(datapoints, max_size=4))
def test_B2_any_datapoint(slots, rows):
    rows = [row for row in rows if row is not None]
    assert [frozen(row) for row in through(slots, rows)] == [frozen(row) for row in rows]


def test_an_array_made_in_the_slot_is_not_copied(slots):
    writer = SlotWriter(slots, 1)
    made = writer.allocate((4, 5), np.float32)
    made[...] = 1
    packed, _, _ = pack_rows([[made, made[1:]]], writer)
    first, second = packed.rows(slots.root(1, writer.position), copy=False)[0]
    made[1, 1] = 7
    assert first[1, 1] == second[0, 1] == 7


def test_a_copy_is_independent_of_the_slot(slots):
    writer = SlotWriter(slots, 1)
    made = writer.allocate((4,), np.float32)
    made[...] = 1
    packed, _, _ = pack_rows([[made]], writer)
    (copied,) = packed.rows(slots.root(1, writer.position), copy=True)[0]
    made[...] = 7
    assert copied.tolist() == [1, 1, 1, 1]


def test_small_datapoints_take_little_of_the_pickle(slots):
    rows = [{"image": IMAGE, "more": (i, {"deep": IMAGE[0]})} for i in range(1000)]
    packed, _, _ = pack_rows(rows, SlotWriter(slots, 1))
    assert len(packed.pickled) < 5000 and len(packed.places) == 2


def test_rows_of_a_mapped_file_travel_by_value(slots, tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(12.0).reshape(3, 4))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    for rows in ([[row] for row in mapped], [[mapped[0], "a"], [mapped[1]]]):
        out = through(slots, rows)
        assert [type(row[0]) for row in out] == [np.ndarray] * len(rows)
        assert [row[0].tolist() for row in out] == [row[0].tolist() for row in rows]


def test_B2_what_cannot_travel_is_named_and_what_comes_before_it_is_kept(slots):
    rows = [[1, {"deep": 1}], [2, {"deep": 2}], [3, {"deep": (i for i in ())}]]
    writer = SlotWriter(slots, 1)
    packed, count, error = pack_rows(rows, writer)
    assert count == 2 and isinstance(error, PackError)
    assert "component [1]['deep'] is a generator" in str(error)
    assert packed.rows(slots.root(1, writer.position), False) == rows[:2]
