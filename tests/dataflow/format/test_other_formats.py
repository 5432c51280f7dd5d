"""HDF5, Parquet, ArrayRecord, tar, npy, CSV and SVMLight against the libraries that define them."""

from __future__ import annotations

import csv
import io
import json
import tarfile
import uuid
from pathlib import Path

import cloudpickle
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.datasets import dump_svmlight_file

from tests.dataflow.datapoints import flows, same
from towerpack.dataflow import (
    ArrayRecordData,
    BatchData,
    CorruptRecord,
    CSVData,
    HDF5Data,
    NumpyColumns,
    NumpyFiles,
    ParquetData,
    SVMLightData,
    TarData,
    write_arrayrecord,
    write_parquet,
    write_tar,
)
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.format.records import decode_record


def new_path(ending: str = "x") -> Path:
    return Path(f"{uuid.uuid4().hex}.{ending}")


# HDF5


@given(hnp.arrays(np.float32, (6, 2)), hnp.arrays(np.int16, (6,)), st.booleans(), st.booleans())
@settings(max_examples=20)
def test_hdf5_reads_what_h5py_wrote(x, y, in_memory, compressed):
    path = new_path("h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("deep/x", data=x, compression="gzip" if compressed else None)
        file["y"] = y
    flow = HDF5Data(path, ["deep/x", "y"], shuffle=False, in_memory=in_memory)
    same(flow, [list(row) for row in zip(x, y, strict=True)])
    same(cloudpickle.loads(cloudpickle.dumps(flow)), list(flow))
    shuffled = HDF5Data(path, ["deep/x", "y"], in_memory=in_memory, seed=2)
    batch = BatchData(shuffled, 3).read([1], Epoch(4))[0]
    rows = shuffled.read([3, 4, 5], Epoch(4))
    np.testing.assert_array_equal(batch[0], np.stack([row[0] for row in rows]))
    np.testing.assert_array_equal(batch[1], np.stack([row[1] for row in rows]))


def test_hdf5_names_what_is_wrong():
    with h5py.File("x.h5", "w") as file:
        file["a"], file["b"], file["scalar"] = np.zeros(3), np.zeros(4), 1.0
    with pytest.raises(KeyError, match=r"has no dataset 'c'; it has \['a', 'b', 'scalar'\]"):
        HDF5Data("x.h5", ["c"])
    with pytest.raises(ValueError, match="received {'a': 3, 'b': 4}"):
        HDF5Data("x.h5", ["a", "b"])
    with pytest.raises(ValueError, match="is a scalar"):
        HDF5Data("x.h5", ["scalar"])
    with pytest.raises(FileNotFoundError):
        HDF5Data("none.h5", ["a"])


def test_F12_a_truncated_hdf5_is_refused():
    with h5py.File("x.h5", "w") as file:
        file["a"] = np.zeros(10_000)
    Path("x.h5").write_bytes(Path("x.h5").read_bytes()[:-500])
    with pytest.raises(CorruptRecord, match="x.h5 is not an HDF5 file, or is truncated"):
        HDF5Data("x.h5", ["a"])


# Parquet

rows = st.lists(
    st.fixed_dictionaries(
        {
            "i": st.integers(-(2**63), 2**63 - 1),
            "f": st.floats(allow_nan=False),
            "s": st.text(st.characters(codec="utf-8"), max_size=4),
            "b": st.binary(max_size=4),
            "flag": st.booleans(),
            "list": hnp.arrays(np.int32, st.integers(0, 4)),
            "image": hnp.arrays(np.uint8, (2, 3)),
        }
    ),
    min_size=1,
    max_size=7,
)


def equal(received, expected) -> None:
    for a, b in zip(received, expected, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            np.testing.assert_array_equal(a[key], b[key])
            if isinstance(b[key], np.ndarray):
                assert a[key].dtype == b[key].dtype and a[key].shape == b[key].shape


@given(rows, st.integers(1, 4))
@settings(max_examples=12)
def test_parquet_both_ways(flow, group):
    path = new_path("parquet")
    write_parquet(flow, path, rows_per_group=group)
    received = ParquetData(path)
    equal(received, flow)
    table = pq.read_table(path)
    assert table["i"].to_pylist() == [row["i"] for row in flow]
    assert table["s"].to_pylist() == [row["s"] for row in flow]
    assert [list(x) for x in table["list"].to_pylist()] == [row["list"].tolist() for row in flow]


def test_parquet_of_others_with_columns_nulls_and_shards():
    for shard in range(2):
        start = 10 * shard
        table = {"a": list(range(start, start + 10)), "n": [None, 1.5] * 5, "t": ["x"] * 10}
        pq.write_table(pa.table(table), f"part-{shard}.parquet", row_group_size=4)
    flow = ParquetData("part-*.parquet", columns=["a"], shuffle=True)
    assert sorted(int(row["a"]) for row in flow) == list(range(20))
    assert [row["n"] for row in ParquetData("part-0.parquet")][:2] == [None, 1.5]
    with pytest.raises(KeyError, match=r"has no column \['z'\]"):
        ParquetData("part-0.parquet", columns=["z"])


def test_F12_parquet_damage_is_found():
    write_parquet(
        [[np.arange(i, i + 500)] for i in range(20)],
        "x",
        rows_per_group=5,
        compression="none",
    )
    whole = Path("x").read_bytes()
    content = bytearray(whole)
    column = pq.ParquetFile("x").metadata.row_group(1).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    content[start + column.total_compressed_size // 2] ^= 1
    Path("x").write_bytes(content)
    flow = ParquetData("x", on_error="skip")
    assert [int(row["0"][0]) for row in flow] == [*range(5), *range(10, 20)]
    assert flow.skipped == 5  # the row group
    with pytest.raises(CorruptRecord, match="x, row group 1 is damaged"):
        list(ParquetData("x"))
    Path("x").write_bytes(whole[:-10])
    with pytest.raises(CorruptRecord, match="x is not a whole Parquet file"):
        ParquetData("x")


def test_parquet_refuses_other_shapes_later():
    with pytest.raises(ValueError, match="expected arrays of one shape"):
        write_parquet([[np.zeros((2, 2))], [np.zeros((2, 3))]], "x")
    with pytest.raises(ValueError, match="row 1: expected components"):
        write_parquet([{"a": 1}, {"b": 1}], "x")
    with pytest.raises(ValueError, match="the flow is empty"):
        write_parquet([], "x")
    assert not list(Path().iterdir())


# ArrayRecord


@given(flows)
@settings(max_examples=15)
def test_arrayrecord_round_trip(flow):
    path = new_path("arrayrecord")
    write_arrayrecord(flow, path)
    received = ArrayRecordData(path, decoder=decode_record)
    assert len(received) == len(flow)
    same(received, flow)
    same(cloudpickle.loads(cloudpickle.dumps(received)), flow)


def test_arrayrecord_by_its_own_library_and_shards():
    from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

    write_arrayrecord([[b"a"], [b"b"]], "ours", encoder=lambda dp: dp[0])
    assert ArrayRecordReader("ours").read_all() == [b"a", b"b"]
    writer = ArrayRecordWriter("theirs", "group_size:2")
    for i in range(5):
        writer.write(b"%d" % i)
    writer.close()
    flow = ArrayRecordData(["ours", "theirs"])
    assert list(flow) == [b"a", b"b", b"0", b"1", b"2", b"3", b"4"]
    assert sorted(ArrayRecordData(["ours", "theirs"], shuffle=True)) == sorted(flow)


def test_F12_arrayrecord_damage_loses_that_record_alone():
    generator = np.random.default_rng(0)
    records = [generator.bytes(4000) for _ in range(6)]
    write_arrayrecord([[r] for r in records], "x", encoder=lambda dp: dp[0])
    content = bytearray(Path("x").read_bytes())
    content[content.index(records[3][:50]) + 25] ^= 1
    Path("x").write_bytes(content)
    flow = ArrayRecordData("x", on_error="skip")
    assert list(flow) == records[:3] + records[4:] and flow.skipped == 1
    with pytest.raises(CorruptRecord, match="x, record 3 is damaged"):
        list(ArrayRecordData("x"))
    Path("x").write_bytes(content[:-100])
    with pytest.raises(CorruptRecord, match="x is not a whole ArrayRecord file"):
        ArrayRecordData("x")


# tar


def test_tar_round_trip():
    image = np.random.default_rng(0).integers(0, 255, (5, 6, 3), dtype=np.uint8)
    flow = [
        {"png": np.roll(image, i), "cls": i, "json": {"i": i}, "txt": f"é{i}", "npy": np.eye(2) * i}
        for i in range(6)
    ]
    write_tar(flow, "x.tar")
    received = TarData("x.tar")
    assert [sample.pop("__key__") for sample in received][:2] == ["00000000", "00000001"]
    for a, b in zip(received, flow, strict=True):
        a.pop("__key__")
        assert a.keys() == b.keys()
        for key in b:
            np.testing.assert_array_equal(a[key], b[key])
    paths = write_tar(flow, "s.tar", shards=2)
    assert sorted(s["cls"] for s in TarData(paths, shuffle=True)) == list(range(6))


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def test_tar_in_webdatasets_layout():
    with tarfile.open("x.tar", "w") as archive:
        add(archive, "a/0001.left.txt", b"left")
        add(archive, "a/0001.json", json.dumps([1]).encode())
        add(archive, "a/0002.bin", b"\0")
        add(archive, "noending", b"?")
    samples = list(TarData("x.tar"))
    assert samples == [
        {"__key__": "a/0001", "left.txt": "left", "json": [1]},
        {"__key__": "a/0002", "bin": b"\0"},
    ]
    raw = TarData("x.tar", decode=False, decoders={"bin": lambda data, name: len(data)})
    assert raw[0]["json"] == b"[1]" and raw[1]["bin"] == 1


def test_B6_pickles_in_tar_are_never_read():
    with tarfile.open("x.tar", "w") as archive:
        add(archive, "1.pyd", b"cposix\nsystem\n(S'touch owned'\ntR.")
    with pytest.raises(ValueError, match="1.pyd is a pickle, which is never read"):
        TarData("x.tar")[0]
    assert not Path("owned").exists()


def test_F12_tar_damage():
    write_tar([{"txt": "x" * 3000, "cls": i} for i in range(5)], "x.tar")
    whole = Path("x.tar").read_bytes()
    Path("x.tar").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptRecord, match="x.tar is not a whole, uncompressed tar file"):
        TarData("x.tar")
    flow = TarData("x.tar", on_error="skip")
    received = [sample.get("cls") for sample in flow]
    assert received == list(range(len(received))) and 0 < len(received) < 5
    with tarfile.open("z.tar", "w") as archive:
        add(archive, "1.cls", b"one")
    with pytest.raises(CorruptRecord, match="z.tar, member 1.cls cannot be decoded"):
        TarData("z.tar")[0]
    with tarfile.open("z.tar.gz", "w:gz") as archive:
        add(archive, "1.cls", b"1")
    with pytest.raises(CorruptRecord, match="unpack a .tar.gz first"):
        TarData("z.tar.gz")


# numpy


def test_numpy_columns():
    Path("d").mkdir()
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6)
    np.save("d/x.npy", x)
    np.save("d/y.npy", y)
    flow = NumpyColumns("d")
    same(flow, [{"x": a, "y": b} for a, b in zip(x, y, strict=True)])
    assert isinstance(flow.arrays[0], np.memmap)
    copied = cloudpickle.dumps(flow)
    assert len(copied) < 2000
    same(cloudpickle.loads(copied), list(flow))
    same(NumpyColumns("d", ["y"]), [[b] for b in y])
    batch = BatchData(NumpyColumns("d", ["y", "x"], shuffle=True), 4)[0]
    np.testing.assert_array_equal(batch[1], x[batch[0]])


def test_numpy_files():
    np.save("a.npy", np.arange(3))
    np.savez("b.npz", x=np.eye(2), y=1)
    first, second = NumpyFiles(".")
    np.testing.assert_array_equal(first, np.arange(3))
    assert second["x"].shape == (2, 2) and second["y"] == 1


class Touch:
    def __reduce__(self):
        return Path.touch, (Path("owned"),)


def test_B6_pickled_numpy_files_are_refused():
    np.save("a.npy", np.array([Touch()], object))
    np.savez("b.npz", x=np.array([Touch()], object))
    for name in ("a.npy", "b.npz"):
        with pytest.raises(CorruptRecord, match=f"{name}.* holds pickled"):
            NumpyFiles([name])[0]
    Path("d").mkdir()
    np.save("d/a.npy", np.array([Touch()], object))
    with pytest.raises(CorruptRecord, match="cannot be read"):
        NumpyColumns("d")
    assert not Path("owned").exists()


def test_F12_truncated_numpy_files_are_named():
    Path("d").mkdir()
    np.save("d/a.npy", np.zeros(5000))
    np.savez("d/b.npz", x=np.arange(5000))
    for name in ("d/a.npy", "d/b.npz"):
        Path(name).write_bytes(Path(name).read_bytes()[:-2000])
        with pytest.raises(CorruptRecord, match=f"{name}.* cannot be read"):
            NumpyFiles([name])[0]
    with pytest.raises(CorruptRecord, match="a.npy cannot be read"):
        NumpyColumns("d")


# CSV

fields = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=8)


@given(st.lists(st.tuples(fields, fields, st.integers()), max_size=10))
@settings(max_examples=60)
def test_csv_reads_what_the_csv_module_wrote(table):
    path = new_path("csv")
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b,c", "n"])
        writer.writerows(table)
    flow = CSVData(path, types={"a": str, "b,c": str, "n": int})
    assert [tuple(row.values()) for row in flow] == table
    assert len(flow) == len(table)


def test_csv_across_blocks(monkeypatch):
    from towerpack.dataflow.format import text

    monkeypatch.setattr(text, "BLOCK", 7)
    Path("x.csv").write_text('a;b\n"1\n;2";x\n\n\n3;"y""z"\n')
    flow = CSVData("x.csv", delimiter=";")
    assert list(flow) == [{"a": "1\n;2", "b": "x"}, {"a": "3", "b": 'y"z'}]
    assert CSVData("x.csv", names=["p", "q"], delimiter=";")[0] == {"p": "a", "q": "b"}


def test_csv_types_are_inferred_from_all_lines():
    Path("x.csv").write_text(
        "whole,real,gap,zip,name,empty,late,big\n"
        "1,1,2,01234,a,,1,9223372036854775808\n"
        "-2,2.5e3,,98765,7,,2,1\n"
        "oops\n"
        "+3,nan,4,00000,1_0,,x,1\n"
    )
    flow = CSVData("x.csv", on_error="skip")
    first, second, third = flow
    assert [type(value) for value in first.values()] == [int, float, float, *[str] * 4, float]
    assert (first["whole"], second["whole"], third["whole"]) == (1, -2, 3)
    assert (second["real"], first["zip"], third["name"], third["late"]) == (
        2500.0,
        "01234",
        "1_0",
        "x",
    )
    assert np.isnan(second["gap"])
    batch = next(iter(BatchData(flow, 3)))
    assert (batch["whole"].dtype, batch["real"].dtype) == (np.int32, np.float32)
    assert set(map(type, CSVData("x.csv", types=str)[0].values())) == {str}


def test_F12_csv_damage_names_the_record():
    Path("x.csv").write_text("a,b\n1,2\n3\nx,5\n6,7\n")
    flow = CSVData("x.csv", types={"a": int})
    with pytest.raises(CorruptRecord, match="x.csv, record 1 at offset 8: expected 2 fields"):
        flow[1]
    with pytest.raises(CorruptRecord, match="x.csv, record 2 at offset 10: invalid literal"):
        flow[2]
    skipping = CSVData("x.csv", types={"a": int}, on_error="skip")
    assert list(skipping) == [{"a": 1}, {"a": 6}] and skipping.skipped == 2
    with pytest.raises(KeyError, match="has no column"):
        CSVData("x.csv", types={"z": int})


# SVMLight


@given(hnp.arrays(np.float64, (4, 3), elements=st.floats(-9, 9)), hnp.arrays(np.int8, (4,)))
@settings(max_examples=15)
def test_svmlight_reads_what_sklearn_wrote(x, y):
    x[0, 2] = 1  # the last column appears in the file
    path = new_path("svm")
    dump_svmlight_file(x, y, str(path), zero_based=False)
    flow = SVMLightData(path, shuffle=False)
    for (features, label), expected, number in zip(flow, x, y, strict=True):
        np.testing.assert_allclose(features, expected, rtol=1e-6)
        assert label == number
    (batch, _) = BatchData(flow, 4)[0]
    np.testing.assert_array_equal(batch, np.stack([dp[0] for dp in flow]))


def test_F12_svmlight_damage_names_the_file():
    Path("x").write_text("1 1:0.5\n2 nonsense\n")
    with pytest.raises(CorruptRecord, match="x is not an SVMLight file"):
        SVMLightData("x")
