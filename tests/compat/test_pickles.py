"""Files in which tensorpack pickled datapoints."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.dataflow.datapoints import same
from towerpack.compat.pickles import lmdb_keys, load_lmdb, load_tfrecord
from towerpack.dataflow import LMDBData, LMDBSerializer, TFRecordSerializer, UnsafePickle
from towerpack.dataflow.format.files import CorruptRecord
from towerpack.dataflow.format.stored import open_stored
from towerpack.dataflow.format.tfrecord import write_tfrecord

lmdb = pytest.importorskip("lmdb")

POINTS = [[np.full((3, 2), i, np.float32), {"label": i, "name": str(i)}] for i in range(20)]
KEYS = [f"{i:08}".encode() for i in range(20)]


def write_old_lmdb(records: list[bytes], keys: bytes) -> None:
    with lmdb.open("old.lmdb", subdir=False, map_size=1 << 24, lock=False) as environment:
        with environment.begin(write=True) as transaction:
            for i, record in enumerate(records):
                transaction.put(f"{i:08}".encode(), record)
            transaction.put(b"__keys__", keys)


def write_old_points() -> None:
    write_old_lmdb([pickle.dumps(point, -1) for point in POINTS], pickle.dumps(KEYS))


def test_what_tensorpack_pickled_is_read_without_unpickling():
    write_old_points()
    flow = load_lmdb("old.lmdb")
    same(flow, POINTS)
    LMDBSerializer.save(flow, "new.lmdb")
    same(LMDBSerializer.load("new.lmdb"), POINTS)
    same(load_lmdb("new.lmdb"), POINTS)


def test_the_order_of_the_keys_is_kept():
    write_old_lmdb([pickle.dumps(point) for point in POINTS], pickle.dumps(KEYS[::-1]))
    same(load_lmdb("old.lmdb"), POINTS[::-1])
    raw = LMDBData("old.lmdb", keys=lmdb_keys("old.lmdb"))
    assert [key for key, _ in raw] == KEYS[::-1]


def test_the_new_serializers_name_this_module():
    write_old_points()
    for read in (LMDBSerializer.load, LMDBData, open_stored):
        with pytest.raises(CorruptRecord, match=r"is a pickle.*towerpack\.compat\.pickles"):
            read("old.lmdb")


def test_tfrecord_of_pickles():
    with write_tfrecord("old.tfrecord") as writer:
        for point in POINTS:
            writer.write(pickle.dumps(point))
    same(load_tfrecord("old.tfrecord"), POINTS)
    with pytest.raises(CorruptRecord, match=r"is a pickle.*towerpack\.compat\.pickles"):
        TFRecordSerializer.load("old.tfrecord")[0]


class Malicious:
    def __reduce__(self):
        return Path.touch, (Path("owned"),)


def test_B6_a_malicious_pickle_in_an_lmdb_is_refused():
    write_old_lmdb([pickle.dumps([1]), pickle.dumps(Malicious())], pickle.dumps([b"00000001"]))
    with pytest.raises(UnsafePickle, match="never done"):
        load_lmdb("old.lmdb")[0]
    assert not Path("owned").exists()


def test_B6_malicious_keys_are_refused():
    write_old_lmdb([b"x"], pickle.dumps(Malicious()))
    for read in (load_lmdb, LMDBSerializer.load, LMDBData):
        with pytest.raises(CorruptRecord):
            read("old.lmdb")
    assert not Path("owned").exists()
