"""TFRecord files: damage, the index, shards, GZIP."""

from __future__ import annotations

import gzip
import struct
import uuid
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from towerpack.core.checksum import masked_crc
from towerpack.dataflow import CorruptRecord, LocallyShuffleData, TFRecordData, build_index
from towerpack.dataflow.format.tfrecord import index_path, write_tfrecord


def write(path: str, records: list[bytes], compression: str | None = None) -> None:
    with write_tfrecord(path, compression) as writer:
        for record in records:
            writer.write(record)


@given(st.lists(st.binary(max_size=300), max_size=20), st.booleans())
@settings(max_examples=50)
def test_round_trip_with_and_without_the_index(records, indexed):
    path = uuid.uuid4().hex
    write(path, records)
    if not indexed:
        index_path(path).unlink()
    flow = TFRecordData(path)
    assert [file.indexed for file in flow.files] == [indexed]
    assert list(flow) == records and len(flow) == len(records)


def test_the_checksum_is_the_published_one():
    assert masked_crc(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) % 2**32


RECORDS = [bytes([i]) * (100 + i) for i in range(20)]


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("where", ["length", "length checksum", "data", "checksum"])
def test_F12_one_damaged_byte_loses_that_record_alone(indexed, where):
    write("x", RECORDS)
    content = bytearray(Path("x").read_bytes())
    start = content.index(RECORDS[7]) - 12
    offset = {"length": 0, "length checksum": 9, "data": 40, "checksum": 12 + 107}[where]
    content[start + offset] ^= 0x10
    Path("x").write_bytes(content)
    if not indexed:
        index_path("x").unlink()
    flow = TFRecordData("x")
    assert len(flow) == 20
    with pytest.raises(CorruptRecord, match="x, record 7 at offset"):
        list(flow)
    skipping = TFRecordData("x", on_error="skip")
    assert list(skipping) == RECORDS[:7] + RECORDS[8:]
    assert skipping.skipped == 1


@given(st.data())
@settings(max_examples=60)
def test_F12_any_damage_is_found_and_nothing_wrong_comes_out(data):
    path = uuid.uuid4().hex
    write(path, RECORDS)
    content = bytearray(Path(path).read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(content)))
    Path(path).write_bytes(content[:cut] if data.draw(st.booleans()) else content)
    if data.draw(st.booleans()):
        index_path(path).unlink()
    received = list(TFRecordData(path, on_error="skip"))
    assert set(received) <= set(RECORDS)
    assert received == sorted(received, key=RECORDS.index)


def test_F12_a_truncated_file_loses_its_end_alone():
    write("x", RECORDS)
    content = Path("x").read_bytes()
    Path("x").write_bytes(content[:-30])
    flow = TFRecordData("x", on_error="skip")
    assert list(flow) == RECORDS[:-1] and flow.skipped == 1


@pytest.mark.parametrize("count", [5, 0])
def test_F25_a_file_cut_between_two_records_is_an_error(count):
    write("x", RECORDS)
    file = TFRecordData("x").files[0]
    Path("x").write_bytes(Path("x").read_bytes()[: file.starts[count]])
    whole = f"{count} whole records, its index .x.index says .* and {len(RECORDS)} records"
    with pytest.raises(CorruptRecord, match=f"^x has .* {whole}"):
        TFRecordData("x")
    flow = TFRecordData("x", on_error="skip")
    assert list(flow) == RECORDS[:count] and flow.skipped == len(RECORDS) - count
    build_index("x")
    assert list(TFRecordData("x")) == RECORDS[:count]


def test_F25_an_index_of_a_smaller_file_is_an_error():
    write("x", RECORDS[:5])
    stale = index_path("x").read_bytes()
    write("x", RECORDS)
    index_path("x").write_bytes(stale)
    for on_error in ("raise", "skip"):
        with pytest.raises(CorruptRecord, match="the file was cut or changed"):
            TFRecordData("x", on_error=on_error)
    assert build_index("x") == len(RECORDS)
    assert list(TFRecordData("x")) == RECORDS


@pytest.mark.parametrize("length", [1 << 40, (1 << 64) - 1])
def test_F12_a_giant_length_under_GZIP_is_an_error_that_names_the_file(length):
    head = struct.pack("<Q", length)
    with gzip.open("x", "wb") as file:
        file.write(head + struct.pack("<I", masked_crc(head)) + b"little")
    with pytest.raises(CorruptRecord, match="^x, record 0 is truncated"):
        list(TFRecordData("x"))


def test_a_damaged_index_is_an_error_that_says_so():
    write("x", RECORDS)
    content = bytearray(index_path("x").read_bytes())
    content[-1] ^= 1
    index_path("x").write_bytes(content)
    with pytest.raises(CorruptRecord, match="the index .*index is damaged .* delete it"):
        TFRecordData("x")


def test_shards_are_one_sequence_and_shuffled_globally():
    for shard in range(3):
        write(f"train-{shard}", [b"%d" % (10 * shard + i) for i in range(10)])
    assert [int(r) for r in TFRecordData("train-*")] == list(range(30))
    flow = TFRecordData("train-*", shuffle=True)
    order = [int(record) for record in flow.iterate(2)]
    assert sorted(order) == list(range(30)) and len({x // 10 for x in order[:6]}) > 1
    assert [int(record) for record in TFRecordData("train-*", shuffle=True).iterate(2)] == order


def test_gzip_is_read_in_order():
    write("x.gz", RECORDS, "GZIP")
    flow = TFRecordData("x.gz", size=20)
    assert list(flow) == RECORDS == list(flow) and len(flow) == 20
    assert not index_path("x.gz").exists()
    with pytest.raises(ValueError, match="LocallyShuffleData"):
        TFRecordData("x.gz", shuffle=True)
    with pytest.raises(TypeError, match="pass size"):
        len(TFRecordData("x.gz"))
    assert sorted(LocallyShuffleData(flow, 5)) == sorted(RECORDS)


@pytest.mark.parametrize("damage", ["cut", "flip", "inner"])
def test_F12_damaged_gzip_names_the_record(damage):
    write("x.gz", RECORDS, "GZIP")
    content = bytearray(Path("x.gz").read_bytes())
    if damage == "cut":
        content = content[:-60]
    elif damage == "flip":
        content[len(content) // 2] ^= 0xFF
    else:
        inner = bytearray(gzip.decompress(content))
        inner[inner.index(RECORDS[7]) + 5] ^= 1
        content = bytearray(gzip.compress(inner))
    Path("x.gz").write_bytes(content)
    with pytest.raises(CorruptRecord, match=r"x.gz.*record \d+"):
        list(TFRecordData("x.gz"))


def test_an_error_while_writing_keeps_the_old_file():
    write("x", RECORDS)
    with pytest.raises(RuntimeError):
        with write_tfrecord("x") as writer:
            writer.write(b"new")
            raise RuntimeError
    assert list(TFRecordData("x")) == RECORDS
    assert {p.name for p in Path().iterdir()} <= {"x", ".x.index"}
