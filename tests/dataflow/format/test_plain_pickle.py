from __future__ import annotations

import collections
import decimal
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dataflow.datapoints import datapoints, same
from towerpack.dataflow.format.files import CorruptRecord
from towerpack.dataflow.format.plain_pickle import UnsafePickle, read_pickle


@given(datapoints, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_data_and_arrays_come_back(datapoint, protocol):
    same([read_pickle(pickle.dumps(datapoint, protocol))], [datapoint])


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_large_and_shared_and_fortran(protocol):
    array = np.asfortranarray(np.arange(90_000.0).reshape(300, 300))
    value = {"a": array, "same": array, "numbers": [-(2**80), 2**31, 1.5], "set": {1}}
    read = read_pickle(pickle.dumps(value, protocol)) if protocol >= 4 else None
    if read is None:  # before protocol 4 a set is made by a call
        with pytest.raises(UnsafePickle):
            read_pickle(pickle.dumps(value, protocol))
        return
    np.testing.assert_array_equal(read["a"], array)
    assert read["a"].flags.f_contiguous and read["numbers"] == value["numbers"]


def test_python_2_strings_are_bytes():
    # protocol 2 as Python 2 wrote it: SHORT_BINSTRING for str
    data = b"\x80\x02}q\x01U\x04dataq\x02U\x02\xff\x00q\x03s."
    assert read_pickle(data) == {b"data": b"\xff\x00"}


class Touch:
    def __reduce__(self):
        return Path.touch, (Path("owned"),)


class WithState:
    pass


class Recursive(list):
    pass


OTHERS = {
    "touch": Touch(),
    "nested": [1, {"a": Touch()}],
    "eval": eval,
    "objects": np.array([Touch()], object),
    "dtype": np.dtype("O"),
    "state": WithState(),
    "subclass": Recursive(),
    "decimal": decimal.Decimal(1),
    "ordered": collections.OrderedDict(a=1),
    "fields": np.zeros(2, [("a", int)]),
}
WATCHED: list[list[str]] = []  # a hook cannot be removed, so there is one, and it is switched off


def watch(event: str, arguments: object) -> None:
    if WATCHED and event in ("import", "pickle.find_class", "open", "exec", "compile", "os.system"):
        WATCHED[0].append(event)


sys.addaudithook(watch)
read_pickle(pickle.dumps(["é", "x"], 0))  # Python imports its own text codecs on first use


@pytest.mark.parametrize("value", OTHERS.values(), ids=OTHERS.keys())
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_B6_anything_else_is_refused_and_nothing_runs(value, protocol):
    data = pickle.dumps(value, protocol)
    events: list[str] = []
    WATCHED.append(events)
    try:
        read_pickle(data, "file x")
    except CorruptRecord as error:
        WATCHED.clear()
        assert "file x" in str(error)
    else:
        WATCHED.clear()
        raise AssertionError("it was read")
    assert not events and not Path("owned").exists()


@given(st.binary(max_size=200))
def test_B6_garbage_gives_only_corrupt_record(data):
    try:
        read_pickle(data)
    except CorruptRecord:
        pass


@given(datapoints, st.data())
def test_B6_damaged_pickles_give_only_corrupt_record(datapoint, data):
    content = bytearray(pickle.dumps(datapoint))
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(content)))
    for damaged in (content, content[:cut]):
        try:
            read_pickle(damaged)
        except CorruptRecord:
            pass


def test_the_error_names_the_file():
    with pytest.raises(UnsafePickle, match="file x: it asks for posix.system"):
        read_pickle(b"cposix\nsystem\n(S'true'\ntR.", "file x")
