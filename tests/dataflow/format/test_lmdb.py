"""LMDB read by offset, compared with what the lmdb library wrote."""

from __future__ import annotations

import struct
import subprocess
import sys
import uuid
from pathlib import Path

import cloudpickle
import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from towerpack.core import codec
from towerpack.dataflow import CorruptRecord, LMDBData, LMDBDataDecoder

contents = st.dictionaries(
    st.binary(min_size=1, max_size=20).filter(lambda key: key != b"__keys__"),
    st.binary(max_size=3000) | st.just(bytes(9000)),
    max_size=60,
)


def write(path: str | Path, *transactions: dict[bytes, bytes | None]) -> dict[bytes, bytes]:
    """Puts, and deletes where the value is None; gives what is in the file at the end."""
    with lmdb.open(str(path), subdir=False, map_size=1 << 26, lock=False) as environment:
        for changes in transactions:
            with environment.begin(write=True) as transaction:
                for key, value in changes.items():
                    if value is None:
                        transaction.delete(key)
                    else:
                        transaction.put(key, value)
        with environment.begin() as transaction:
            return dict(transaction.cursor())


def check(path: str | Path, expected: dict[bytes, bytes]) -> LMDBData:
    flow = LMDBData(path)
    assert len(flow) == len(expected)
    assert [tuple(record) for record in flow] == list(expected.items())
    return flow


@given(contents, contents, st.sets(st.integers(0, 60)))
@settings(max_examples=60)
def test_it_reads_what_lmdb_wrote(first, second, deleted):
    path = uuid.uuid4().hex
    keys = list(first)
    removals = {keys[i]: None for i in deleted if i < len(keys)}
    check(path, write(path, first, second, removals))


def test_many_records_in_a_deep_tree_after_changes():
    generator = np.random.default_rng(0)
    records = {b"%07d" % i: generator.bytes(int(generator.integers(40))) for i in range(30_000)}
    records |= {
        b"big%04d" % i: generator.bytes(int(generator.integers(20_000))) for i in range(200)
    }
    removals = dict.fromkeys(list(records)[::3])
    expected = write("x", records, removals, {b"%07d" % 6: b"changed"})
    flow = check("x", expected)
    assert LMDBData("x", keys=[b"0000007"])[0] == [b"0000007", expected[b"0000007"]]
    copy = cloudpickle.loads(cloudpickle.dumps(flow))
    assert copy[17] == flow[17]


def test_an_empty_database():
    check("x", write("x", {b"a": b"b"}, {b"a": None}))


def test_a_directory_is_a_database_too():
    with lmdb.open("d", map_size=1 << 20) as environment:
        with environment.begin(write=True) as transaction:
            transaction.put(b"key", b"value")
    assert list(LMDBData("d")) == [[b"key", b"value"]]


def test_named_databases_are_refused():
    with lmdb.open("x", subdir=False, max_dbs=1, map_size=1 << 20) as environment:
        environment.open_db(b"inner")
    with pytest.raises(ValueError, match="named databases"):
        LMDBData("x")


def records() -> dict[bytes, bytes]:
    generator = np.random.default_rng(1)
    return {b"%04d" % i: generator.bytes(10 if i % 3 else 6000) for i in range(300)}


def test_F12_a_truncated_file_is_an_error_and_not_SIGBUS():
    expected = write("x", records())
    whole = Path("x").read_bytes()
    script = (
        "import sys; from towerpack.dataflow import LMDBData, CorruptRecord\n"
        "try:\n"
        "    flow = LMDBData('cut', shuffle=False, on_error='skip')\n"
        "    print(sum(1 for _ in flow), flow.skipped)\n"
        "except CorruptRecord as error: print('refused')\n"
    )
    seen = set()
    for part in (0.02, 0.3, 0.6, 0.9):
        Path("cut").write_bytes(whole[: int(len(whole) * part)])
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr  # a signal would be negative
        if run.stdout.strip() == "refused":
            seen.add("refused")
        else:
            good, skipped = map(int, run.stdout.split())
            assert good + skipped == len(expected) and skipped
            seen.add("skipped")
    assert "refused" in seen


def test_F12_only_the_record_after_the_cut_is_lost():
    # The tree is one page at the beginning; the values follow it, in order.
    write("x", {b"%04d" % i: bytes([i]) * 6000 for i in range(100)})
    content = Path("x").read_bytes()
    Path("x").write_bytes(content[: content.index(bytes([99]) * 6000) + 100])
    flow = LMDBData("x")
    assert all(flow[i][1] == bytes([i]) * 6000 for i in range(99))
    with pytest.raises(CorruptRecord, match=r"x: the value of key b'0099' should be 6000 bytes"):
        flow[99]


def test_F12_a_tree_that_loops_is_an_error():
    write("x", {b"%06d" % i: bytes(20) for i in range(3000)})
    content = bytearray(Path("x").read_bytes())
    (root,) = struct.unpack_from("<Q", content, 16 + 24 + 48 + 40)
    if struct.unpack_from("<Q", content, 4096 + 16 + 24 + 96 + 8)[0]:  # the second meta is newer
        (root,) = struct.unpack_from("<Q", content, 4096 + 16 + 24 + 48 + 40)
    page = root * 4096
    assert content[page + 10] & 1  # a branch
    (node,) = struct.unpack_from("<H", content, page + 16)
    struct.pack_into("<IH", content, page + node, root, 0)  # its first child is itself
    Path("x").write_bytes(content)
    with pytest.raises(CorruptRecord, match="its tree has a loop"):
        LMDBData("x")


@given(st.data())
@settings(max_examples=80)
def test_F12_damaged_bytes_give_only_corrupt_record(data):
    path = Path("whole")
    if not path.exists():
        write(path, records())
    content = bytearray(path.read_bytes())
    tree = [0, 4096, *range(40)]
    for _ in range(data.draw(st.integers(1, 8))):
        start = data.draw(st.sampled_from(tree))
        offset = (start if start >= 4096 else start * 4096) + data.draw(st.integers(0, 4095))
        if offset < len(content):
            content[offset] = data.draw(st.integers(0, 255))
    Path("damaged").write_bytes(content)
    try:
        list(LMDBData("damaged"))
    except CorruptRecord:
        pass
    except ValueError as error:
        assert "named databases" in str(error)


def test_what_is_no_database_is_refused():
    Path("x").write_bytes(bytes(20_000))
    with pytest.raises(CorruptRecord, match="x is not an LMDB file"):
        LMDBData("x")
    Path("x").write_bytes(b"")
    with pytest.raises(CorruptRecord, match="x is not an LMDB file"):
        LMDBData("x")


def test_keys_and_values_in_lmdbs_order():
    write("x", {b"b": b"2", b"a": b"1", b"c": b"3"})
    assert list(LMDBData("x", shuffle=False)) == [[b"a", b"1"], [b"b", b"2"], [b"c", b"3"]]
    assert sorted(LMDBData("x")) == [[b"a", b"1"], [b"b", b"2"], [b"c", b"3"]]


def test_keys_as_a_list_as_a_pattern_and_as_a_record():
    numbered = {b"%08d" % i: b"%d" % i for i in range(5)}
    write("x", {**numbered, b"other": b"?"})
    assert [v for _, v in LMDBData("x", False, keys=["other", b"00000002"])] == [b"?", b"2"]
    assert [v for _, v in LMDBData("x", False, keys="{:0>8d}")] == [b"0", b"1", b"2", b"3", b"4"]
    write("y", {**numbered, b"__keys__": codec.encode([b"00000003", b"00000001"])})
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
