from __future__ import annotations

import pickle

import pytest

from tests.dataflow.format.test_lmdb_file import write
from towerpack.dataflow import LMDBData, LMDBDataDecoder


def test_keys_and_values_in_lmdbs_order():
    write("x", {b"b": b"2", b"a": b"1", b"c": b"3"})
    assert list(LMDBData("x", shuffle=False)) == [[b"a", b"1"], [b"b", b"2"], [b"c", b"3"]]
    assert sorted(LMDBData("x")) == [[b"a", b"1"], [b"b", b"2"], [b"c", b"3"]]


def test_keys_as_a_list_as_a_pattern_and_as_a_record():
    numbered = {b"%08d" % i: b"%d" % i for i in range(5)}
    write("x", {**numbered, b"other": b"?"})
    assert [v for _, v in LMDBData("x", False, keys=["other", b"00000002"])] == [b"?", b"2"]
    assert [v for _, v in LMDBData("x", False, keys="{:0>8d}")] == [b"0", b"1", b"2", b"3", b"4"]
    write("y", {**numbered, b"__keys__": pickle.dumps([b"00000003", b"00000001"])})
    assert [v for _, v in LMDBData("y", False)] == [b"3", b"1"]


def test_a_key_that_is_not_there():
    write("x", {b"a": b"1"})
    with pytest.raises(KeyError, match="has no key b'z'"):
        LMDBData("x", keys=["z"])
    with pytest.raises(KeyError, match="has no key '00'"):
        LMDBData("x", keys="{:02}")


def test_decoder():
    write("x", {b"a": b"1", b"b": b"2", b"c": b"3"})
    flow = LMDBDataDecoder(
        LMDBData("x", shuffle=False), lambda k, v: None if k == b"b" else [k.decode(), int(v)]
    )
    assert list(flow) == [["a", 1], ["c", 3]]


def test_an_error_in_the_decoder_names_it_and_the_datapoint():
    def decode(key, value):
        raise RuntimeError("no")

    write("x", {b"a": b"1"})
    with pytest.raises(RuntimeError) as caught:
        LMDBDataDecoder(LMDBData("x"), decode)[0]
    assert caught.value.__notes__ == ["in LMDBDataDecoder(decode), at datapoint 0 of epoch 0"]
