"""`towerpack data` on files of every format."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from tests.dataflow.datapoints import same
from towerpack.cli import app
from towerpack.cli.contact_sheet import contact_sheet
from towerpack.dataflow import (
    LMDBSerializer,
    TFRecordData,
    TFRecordSerializer,
    write_examples,
    write_tar,
)
from towerpack.dataflow.format.stored import open_stored

POINTS = [[np.full((6, 5, 3), 20 * i, np.uint8), i, f"text {i}"] for i in range(9)]


def run(*arguments: object):
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


@pytest.mark.parametrize("ending", ["lmdb", "tfrecord", "npz", "arrayrecord", "h5", "parquet"])
def test_convert_info_and_verify(ending):
    LMDBSerializer.save(POINTS, "a.lmdb")
    target = Path(f"b.{ending}")
    result = run("convert", "a.lmdb", target)
    assert result.exit_code == 0, result.output
    assert f"a.lmdb (LMDB of datapoints) -> {target}" in result.output
    if ending not in ("h5", "parquet"):
        same(open_stored(target).flow, POINTS)
    result = run("info", target, "--picture", "sheet.png")
    assert result.exit_code == 0, result.output
    assert "datapoints: 9" in result.output and "uint8 6x5x3, from 0 to 160" in result.output
    assert "9 images -> sheet.png" in result.output
    sheet = cv2.imread("sheet.png")
    assert sheet.shape == contact_sheet([("", POINTS[0][0])] * 9).shape
    result = run("verify", target)
    assert result.exit_code == 0 and "9 intact records, 0 damaged" in result.output
    assert run("convert", "a.lmdb", target).exit_code == 1  # never over another


def test_examples_are_shown_as_they_are():
    TFRecordSerializer.save([{"label": i, "x": np.float32([i, 1])} for i in range(4)], "a.tfrecord")
    assert run("convert", "a.tfrecord", "b.tfrecord", "--examples").exit_code == 0
    result = run("info", "b.tfrecord")
    assert "TFRecord of tf.train.Example" in result.output
    assert "['label']: int64, from 0 to 3" in result.output
    assert "['x']: float32 2" in result.output


def test_other_sources():
    write_tar([{"cls": 1}], "x.tar")
    write_examples([{"a": 1}], "x.gz", compression="GZIP")
    Path("x.csv").write_text("a,b\n1,2\n")
    Path("d").mkdir()
    np.save("d/x.npy", np.zeros((3, 2)))
    np.savez("columns.npz", x=np.zeros((3, 2)), y=np.arange(3))
    for path, words in [
        ("x.tar", "tar of samples"),
        ("x.gz", "TFRecord of tf.train.Example"),
        ("x.csv", "CSV"),
        ("d", "npy columns"),
        ("columns.npz", "npz of columns"),
        ("d/x.npy", "npy"),
    ]:
        result = run("info", path)
        assert result.exit_code == 0 and words in result.output, result.output
        assert run("verify", path).exit_code == 0
    assert "there is no image" in run("info", "x.csv", "--picture", "x.png").output


def test_F12_verify_names_the_damaged_records_and_convert_leaves_them_out():
    points = [[np.full(3000, i, np.uint8), i] for i in range(9)]
    TFRecordSerializer.save(points, "a.tfrecord")
    content = bytearray(Path("a.tfrecord").read_bytes())
    for i in (2, 5):
        content[content.index(bytes([i]) * 2000) + 1000] ^= 1
    Path("a.tfrecord").write_bytes(content)
    result = run("verify", "a.tfrecord")
    assert result.exit_code == 1
    assert "a.tfrecord, record 2 at" in result.output and "record 5 at" in result.output
    assert "7 intact records, 2 damaged" in result.output
    assert run("convert", "a.tfrecord", "b.tfrecord").exit_code == 1
    assert not Path("b.tfrecord").exists()
    result = run("convert", "a.tfrecord", "b.tfrecord", "--skip-damaged")
    assert result.exit_code == 0 and "2 damaged records were left out" in result.output
    assert len(TFRecordData("b.tfrecord")) == 7


def test_what_cannot_be_read_is_said_without_a_traceback():
    Path("x.bin").write_bytes(b"what is this?")
    for path in ("x.bin", "none.lmdb"):
        result = run("info", path)
        assert result.exit_code == 1 and "error: " in result.output
        assert "Traceback" not in result.output
