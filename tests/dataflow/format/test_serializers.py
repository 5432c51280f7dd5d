"""What a serializer saved comes back exact; half files never appear; damage is found."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import uuid
from pathlib import Path

import cloudpickle
import lmdb
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from tests.dataflow.datapoints import flows, same
from towerpack.core import codec
from towerpack.dataflow import (
    BatchData,
    CorruptRecord,
    DataFromList,
    HDF5Serializer,
    LMDBSerializer,
    MapData,
    MultiProcessRunner,
    NumpySerializer,
    TFRecordSerializer,
)
from towerpack.dataflow.epoch import Epoch

EXACT = [LMDBSerializer, NumpySerializer, TFRecordSerializer]
POINTS = [[np.full((4, 5), i, np.uint8), i, f"text {i}"] for i in range(20)]


def new_path(ending: str = "data") -> Path:
    return Path(f"{uuid.uuid4().hex}.{ending}")


@pytest.mark.parametrize("serializer", EXACT)
@given(flow=flows)
@settings(max_examples=30)
def test_round_trip(serializer, flow):
    path = new_path()
    serializer.save(flow, path)
    loaded = serializer.load(path, shuffle=False)
    assert len(loaded) == len(flow) and loaded.random_access
    same(loaded, flow)
    same(loaded, flow)  # a second pass is a pass
    same(cloudpickle.loads(cloudpickle.dumps(loaded)), flow)


@pytest.mark.parametrize("serializer", EXACT)
def test_shuffled_order_is_of_seed_and_epoch(serializer):
    serializer.save(POINTS, "x")
    loaded = serializer.load("x", shuffle=True, seed=3)
    first, second = ([dp[1] for dp in loaded.iterate(epoch)] for epoch in (0, 1))
    assert first != second and sorted(first) == sorted(second) == list(range(20))
    assert [dp[1] for dp in serializer.load("x", shuffle=True, seed=3).iterate(1)] == second


@pytest.mark.parametrize("serializer", EXACT)
def test_loaded_arrays_are_writable_and_independent(serializer):
    serializer.save(POINTS, "x")
    loaded = serializer.load("x", shuffle=False)
    loaded[3][0][...] = 77
    assert loaded[3][0].max() == 3


@pytest.mark.parametrize("serializer", [*EXACT, HDF5Serializer])
def test_an_error_while_writing_leaves_nothing(serializer):
    def broken():
        yield POINTS[0]
        raise RuntimeError("the flow failed")

    arguments = (["a", "b", "c"],) if serializer is HDF5Serializer else ()
    with pytest.raises(RuntimeError, match="the flow failed"):
        serializer.save(broken(), "x.data", *arguments)
    assert not list(Path().iterdir())


@pytest.mark.parametrize("serializer", EXACT)
def test_what_cannot_be_stored_names_component_and_datapoint(serializer):
    with pytest.raises(codec.EncodeError, match=r"component \[1\] is a object") as caught:
        serializer.save([[1, 2], [1, object()]], "x")
    assert caught.value.__notes__ == ["in datapoint 1"]


@pytest.mark.parametrize("serializer", EXACT)
def test_F12_one_flipped_bit_loses_that_record_alone(serializer):
    points = [[np.full(3000, i, np.uint8), i] for i in range(10)]
    serializer.save(points, "x")
    content = bytearray(Path("x").read_bytes())
    position = content.index(bytes([6]) * 2000) + 1000
    content[position] ^= 4
    if serializer is NumpySerializer:  # zip has a checksum over all: then the file is refused
        Path("x").write_bytes(content)
        with pytest.raises(CorruptRecord, match="CRC"):
            serializer.load("x")
        return
    Path("x").write_bytes(content)
    loaded = serializer.load("x", shuffle=False)
    for i in range(10):
        if i == 6:
            with pytest.raises(CorruptRecord, match="x, (key b'00000006'|record 6)"):
                loaded[i]
        else:
            assert loaded[i][1] == i
    skipping = serializer.load("x", shuffle=False, on_error="skip")
    assert [dp[1] for dp in skipping] == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    assert skipping.skipped == 1
    with pytest.raises(TypeError, match="skipped 1 damaged"):
        len(skipping)
    batches = [labels.tolist() for _, labels in BatchData(skipping, 3)]
    assert batches == [[0, 1, 2], [3, 4, 5], [7, 8, 9]]


def test_lmdb_is_read_by_the_lmdb_library():
    LMDBSerializer.save(POINTS, "x.lmdb", write_frequency=3)
    with lmdb.open("x.lmdb", subdir=False, readonly=True, lock=False) as environment:
        with environment.begin() as transaction:
            stored = list(transaction.cursor())
    assert [key for key, _ in stored] == [*(f"{i:08}".encode() for i in range(20)), b"__keys__"]
    same([codec.decode(value) for _, value in stored[:-1]], POINTS)


def test_lmdb_grows(monkeypatch):
    from towerpack.dataflow.format import lmdb as lmdb_format

    monkeypatch.setattr(lmdb_format, "UNCOMMITTED", 1 << 19)
    points = [[np.random.default_rng(i).bytes(50_000), i] for i in range(100)]
    points.append([bytes(3_000_000)])
    LMDBSerializer.save(points, "x.lmdb")
    same(LMDBSerializer.load("x.lmdb", shuffle=False), points)


def test_lmdb_in_a_directory_and_never_over_another():
    Path("d").mkdir()
    LMDBSerializer.save(POINTS, "d")
    same(LMDBSerializer.load("d", shuffle=False), POINTS)
    assert [path.name for path in Path("d").iterdir()] == ["data.mdb"]
    with pytest.raises(FileExistsError):
        LMDBSerializer.save(POINTS, "d")


class Malicious:
    def __reduce__(self):
        return Path.touch, (Path("owned"),)


def test_B6_a_pickled_npz_is_refused():
    np.savez("x.npz", buffer=np.array([Malicious()], object))
    with pytest.raises(CorruptRecord, match="x.npz, buffer.npy holds pickled"):
        NumpySerializer.load("x.npz")
    assert not Path("owned").exists()


def test_tfrecord_size_is_compared():
    TFRecordSerializer.save(POINTS, "x")
    assert len(TFRecordSerializer.load("x", 20)) == 20
    with pytest.raises(ValueError, match="expected 21 records"):
        TFRecordSerializer.load("x", 21)


@pytest.mark.parametrize("in_memory", [True, False])
def test_hdf5_round_trip(in_memory):
    HDF5Serializer.save(POINTS * 30, "x.h5", ["a", "group/b", "c"])
    loaded = HDF5Serializer.load("x.h5", ["a", "group/b", "c"], False, in_memory=in_memory)
    assert len(loaded) == 600
    for datapoint, expected in zip(loaded, POINTS * 30, strict=True):
        np.testing.assert_array_equal(datapoint[0], expected[0])
        assert datapoint[0].dtype == np.uint8 and datapoint[1:] == expected[1:]
    images, labels, texts = BatchData(loaded, 8).read([2], Epoch())[0]
    assert (images.dtype, labels.dtype, texts[0]) == (np.uint8, np.int64, "text 16")


def test_hdf5_refuses_datapoints_of_another_shape():
    with pytest.raises(ValueError, match="datapoint 1"):
        HDF5Serializer.save([[np.zeros(2)], [np.zeros(3)]], "x.h5", ["a"])
    with pytest.raises(ValueError, match="datapoint 256 and those after it"):
        HDF5Serializer.save([[np.zeros(2)]] * 256 + [[np.zeros(3)]], "x.h5", ["a"])
    with pytest.raises(ValueError, match="expected 1 components"):
        HDF5Serializer.save([[1, 2]], "x.h5", ["a"])
    assert not list(Path().iterdir())


def test_F12_hdf5_finds_a_flipped_bit():
    points = [[np.full(3000, i, np.uint8)] for i in range(30)]
    HDF5Serializer.save(points, "x.h5", ["a"])
    content = bytearray(Path("x.h5").read_bytes())
    content[content.index(bytes([6]) * 2000) + 1000] ^= 4
    Path("x.h5").write_bytes(content)
    with pytest.raises(CorruptRecord, match="x.h5"):
        HDF5Serializer.load("x.h5", ["a"])
    loaded = HDF5Serializer.load("x.h5", ["a"], False, in_memory=False)
    assert loaded[29][0][0] == 29  # another chunk
    with pytest.raises(CorruptRecord, match="x.h5, row 6"):
        loaded[6]


def test_a_flow_is_saved_as_its_stream():
    flow = MapData(DataFromList(POINTS, shuffle=True, seed=5), lambda dp: dp[1:])
    TFRecordSerializer.save(flow, "x")
    same(
        TFRecordSerializer.load("x"),
        MapData(DataFromList(POINTS, shuffle=True, seed=5), lambda dp: dp[1:]),
    )


@pytest.mark.parametrize("serializer", EXACT)
def test_B2_bfloat16_is_read_by_workers_and_by_the_shell(serializer):
    numbers = [[np.full(3, i, ml_dtypes.bfloat16)] for i in range(4)]
    path = "numbers.npz" if serializer is NumpySerializer else "numbers"
    serializer.save(numbers, path)
    batches = MultiProcessRunner(BatchData(serializer.load(path, shuffle=False), 2), 2, 1)
    for (batch,), first in zip(batches, (0, 2), strict=True):
        assert batch.dtype == ml_dtypes.bfloat16
        assert batch[:, 0].astype(int).tolist() == [first, first + 1]
    verify = f"from towerpack.cli import app; app(['data', 'verify', {path!r}])"
    finished = subprocess.run([sys.executable, "-c", verify], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr


FULL_DISK = """
import sys
import numpy as np
from towerpack.dataflow.format.hdf5 import HDF5Serializer
from towerpack.dataflow.epoch import Epoch

rows = ([np.random.rand(64, 64), i] for i in range(2000))
try:
    HDF5Serializer.save(rows, sys.argv[1] + "/x.h5", ["x", "y"])
except OSError as error:
    print("OSError", error.errno)
"""


@pytest.mark.parametrize("size", ["1m", "8m"])
def test_F10_hdf5_on_a_full_disk_is_an_error_and_no_crash(tmp_path, size):
    script = f'mount -t tmpfs -o size={size} tmpfs "$1" || exit 77; "$2" -c "$3" "$1"; ls "$1"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", str(tmp_path), sys.executable, FULL_DISK]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    if run.returncode == 77 or "unshare:" in run.stderr:
        pytest.skip(f"no mounts here: {run.stderr.strip()}")
    assert (run.stdout, run.stderr) == (f"OSError {errno.ENOSPC}\n", "")
