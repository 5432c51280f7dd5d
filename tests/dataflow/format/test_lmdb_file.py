"""LMDB read by offset, against the lmdb library as the other side."""

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

from towerpack.dataflow.format.corrupt import CorruptRecord
from towerpack.dataflow.format.lmdb_file import LMDBFile

contents = st.dictionaries(
    st.binary(min_size=1, max_size=20), st.binary(max_size=3000) | st.just(bytes(9000)), max_size=60
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


def check(path: str | Path, expected: dict[bytes, bytes]) -> LMDBFile:
    file = LMDBFile(path)
    assert [file.key(i) for i in range(len(file))] == list(expected)
    assert [bytes(file.value(i)) for i in range(len(file))] == list(expected.values())
    return file


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
    file = check("x", expected)
    assert file.find(b"0000006") is not None and file.find(b"nothing") is None
    copy = cloudpickle.loads(cloudpickle.dumps(file))
    assert bytes(copy.value(17)) == bytes(file.value(17))


def test_an_empty_database():
    check("x", write("x", {b"a": b"b"}, {b"a": None}))


def test_a_directory_is_a_database_too():
    with lmdb.open("d", map_size=1 << 20) as environment:
        with environment.begin(write=True) as transaction:
            transaction.put(b"key", b"value")
    assert bytes(LMDBFile("d").value(0)) == b"value"


def test_named_databases_are_refused():
    with lmdb.open("x", subdir=False, max_dbs=1, map_size=1 << 20) as environment:
        environment.open_db(b"inner")
    with pytest.raises(ValueError, match="named databases"):
        LMDBFile("x")


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


def test_F12_only_the_record_behind_the_cut_is_lost():
    # The tree is one page at the beginning; the values are behind it, in order.
    write("x", {b"%04d" % i: bytes([i]) * 6000 for i in range(100)})
    last = int(LMDBFile("x").offsets.max())
    Path("x").write_bytes(Path("x").read_bytes()[: last + 100])
    file = LMDBFile("x")
    assert all(bytes(file.value(i)) == bytes([i]) * 6000 for i in range(99))
    with pytest.raises(CorruptRecord, match=r"x: the value of key b'0099' should be 6000 bytes"):
        file.value(99)


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
        LMDBFile("x")


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
        file = LMDBFile("damaged")
        for i in range(len(file)):
            file.value(i)
    except CorruptRecord:
        pass
    except ValueError as error:
        assert "named databases" in str(error)


def test_what_is_no_database_is_refused():
    Path("x").write_bytes(bytes(20_000))
    with pytest.raises(CorruptRecord, match="x is no LMDB file"):
        LMDBFile("x")
    Path("x").write_bytes(b"")
    with pytest.raises(CorruptRecord, match="x is no LMDB file"):
        LMDBFile("x")
