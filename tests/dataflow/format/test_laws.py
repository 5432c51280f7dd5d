"""Every source over files keeps the laws of `tests/dataflow/laws.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file

from tests.dataflow.format.datums import encode_datum
from tests.dataflow.format.test_lmdb import write as write_lmdb
from tests.dataflow.format.test_tfrecord import write as write_records
from tests.dataflow.laws import LAWS, Example
from towerpack import dataflow as df
from towerpack.dataflow import DataFlow
from towerpack.dataflow.format.records import decode_record

SIZE = 7
FEATURES = {"0": df.FixedLenFeature(), "1": df.FixedLenFeature((2,), np.float32)}


def points() -> list[list[Any]]:
    return [[i, np.float32([i, -i])] for i in range(SIZE)]


def image(number: int) -> np.ndarray:
    return np.full((4, 5, 3), number, np.uint8)


def once(path: str, make: Callable[[], Any]) -> None:
    if not Path(path).exists():
        make()


def lmdb_data(shuffle: bool = True) -> DataFlow:
    once("lmdb", lambda: write_lmdb("lmdb", {b"%d" % i: b"value" for i in range(SIZE)}))
    return df.LMDBData("lmdb", shuffle)


def caffe() -> DataFlow:
    records = {b"%d" % i: encode_datum(image(i), i) for i in range(SIZE)}
    once("caffe", lambda: write_lmdb("caffe", records))
    return df.CaffeLMDB("caffe", shuffle=True)


def serialized(serializer: Any) -> Callable[[], DataFlow]:
    def make() -> DataFlow:
        name = serializer.__name__
        once(name, lambda: serializer.save(points(), name))
        return serializer.load(name, shuffle=True)

    return make


def hdf5(in_memory: bool) -> DataFlow:
    once("h5", lambda: df.HDF5Serializer.save(points(), "h5", ["a", "b"]))
    return df.HDF5Data("h5", ["a", "b"], shuffle=True, in_memory=in_memory)


def damaged_tfrecord() -> DataFlow:
    def make() -> None:
        write_records("damaged", [b"record %d" % i for i in range(SIZE)])
        content = Path("damaged").read_bytes().replace(b"record 3", b"recorb 3")
        Path("damaged").write_bytes(content)

    once("damaged", make)
    return df.TFRecordData("damaged", shuffle=True, on_error="skip")


def gzipped() -> DataFlow:
    once("gz", lambda: write_records("gz", [b"%d" % i for i in range(SIZE)], "GZIP"))
    return df.TFRecordData("gz", size=SIZE)


def examples() -> DataFlow:
    once("ex-00000-of-00002", lambda: df.write_examples(points(), "ex", shards=2))
    return df.ExampleData("ex-*", FEATURES, shuffle=True)


def arrayrecord() -> DataFlow:
    once("ar", lambda: df.write_arrayrecord(points(), "ar"))
    return df.ArrayRecordData("ar", shuffle=True, decoder=decode_record)


def parquet() -> DataFlow:
    once("pq", lambda: df.write_parquet(points(), "pq", rows_per_group=3))
    return df.ParquetData("pq", shuffle=True)


def tar() -> DataFlow:
    samples = [{"png": image(i), "cls": i} for i in range(SIZE)]
    once("t.tar", lambda: df.write_tar(samples, "t.tar"))
    return df.TarData("t.tar", shuffle=True)


def columns() -> DataFlow:
    def make() -> None:
        Path("columns").mkdir()
        np.save("columns/a.npy", np.arange(SIZE))
        np.save("columns/b.npy", np.eye(SIZE))

    once("columns", make)
    return df.NumpyColumns("columns", shuffle=True)


def npz_files() -> DataFlow:
    def make() -> None:
        Path("npz").mkdir()
        for i in range(SIZE):
            np.savez(f"npz/{i}.npz", x=np.arange(3) * i)

    once("npz", make)
    return df.NumpyFiles("npz", shuffle=True)


def csv() -> DataFlow:
    once("c.csv", lambda: Path("c.csv").write_text("a,b\n" + "1,x\n2,y\n3,z\n4,w\n"))
    return df.CSVData("c.csv", shuffle=True, types={"a": int, "b": str})


def svmlight() -> DataFlow:
    once("svm", lambda: dump_svmlight_file(np.eye(SIZE), np.arange(SIZE), "svm"))
    return df.SVMLightData("svm", shuffle=True)


def images() -> DataFlow:
    files = [f"{i}.png" for i in range(SIZE)]
    for i, file in enumerate(files):
        once(file, lambda i=i, file=file: cv2.imwrite(file, image(i)))
    return df.ImageFromFile(files, shuffle=True)


def image_folder() -> DataFlow:
    for i in range(SIZE):
        folder = Path("classes") / str(i % 2)
        folder.mkdir(parents=True, exist_ok=True)
        file = str(folder / f"{i}.png")
        once(file, lambda i=i, file=file: cv2.imwrite(file, image(i)))
    return df.ImageFolder("classes", shuffle=True)


EXAMPLES = [
    Example("LMDBData", lmdb_data, df.LMDBData, random=True),
    Example("LMDBData in order", lambda: lmdb_data(shuffle=False)),
    Example(
        "LMDBDataDecoder",
        lambda: df.LMDBDataDecoder(lmdb_data(), lambda k, v: [int(k), v]),
        df.LMDBDataDecoder,
        random=True,
    ),
    Example("CaffeLMDB", caffe, df.CaffeLMDB, random=True),
    *[
        Example(serializer.__name__, serialized(serializer), random=True)
        for serializer in (df.LMDBSerializer, df.NumpySerializer, df.TFRecordSerializer)
    ],
    Example("HDF5Data", lambda: hdf5(True), df.HDF5Data, random=True),
    Example("HDF5Data on disk", lambda: hdf5(False), random=True),
    Example("TFRecordData damaged", damaged_tfrecord, df.TFRecordData, random=True),
    Example("TFRecordData gzip", gzipped),
    Example("ExampleData", examples, df.ExampleData, random=True),
    Example("ArrayRecordData", arrayrecord, df.ArrayRecordData, random=True),
    Example("ParquetData", parquet, df.ParquetData, random=True),
    Example("TarData", tar, df.TarData, random=True),
    Example("NumpyColumns", columns, df.NumpyColumns, random=True),
    Example("NumpyFiles", npz_files, df.NumpyFiles, random=True),
    Example("CSVData", csv, df.CSVData, random=True),
    Example("SVMLightData", svmlight, df.SVMLightData, random=True),
    Example("ImageFromFile", images, df.ImageFromFile, random=True),
    Example("ImageFolder", image_folder, df.ImageFolder, random=True),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__.removeprefix("law_"))
def test_law(law, example):
    law(example)


def test_every_public_source_over_files_has_an_example():
    public = [getattr(df, name) for name in df.__all__]
    classes = {c for c in public if isinstance(c, type) and issubclass(c, DataFlow)}
    sources = {c for c in classes if c.__module__.startswith("towerpack.dataflow.format.")}
    assert len(sources) > 10
    assert sources <= {example.covers for example in EXAMPLES}


def test_workers_open_their_own_handles():
    for make in (lmdb_data, examples, arrayrecord, parquet, tar, lambda: hdf5(False)):
        flow = make()
        first = flow[0]  # opened here
        runner = df.MultiProcessRunner(flow, 2, 2)
        assert len(list(runner)) == SIZE
        assert type(first) is type(flow[0])
