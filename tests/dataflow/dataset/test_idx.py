from __future__ import annotations

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towerpack.dataflow.dataset.idx import parse_idx, read_idx


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return header + array.astype(np.uint8).tobytes()


def test_reads_raw_and_gzip(tmp_path):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "x").write_bytes(idx_bytes(array))
    (tmp_path / "x.gz").write_bytes(gzip.compress(idx_bytes(array)))
    for name in ("x", "x.gz"):
        np.testing.assert_array_equal(parse_idx(read_idx(tmp_path / name), name), array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "x is no IDX file"),
        (b"\x89PNG\r\n", "received 89 50 4e"),
        (b"\0\0\x0d\x01\0\0\0\x01abcd", "no IDX file of unsigned bytes"),
        (b"\0\0\x08\x03\0\0\0\x01", "ends within its header"),
        (b"\0\0\x08\x01\0\0\0\x04abc", "should hold 4 bytes .* received 3"),
        (b"\0\0\x08\x01\0\0\0\x02abc", "should hold 2 bytes .* received 3"),
    ],
)
def test_F12_a_broken_file_is_an_error_that_says_how(content, message):
    with pytest.raises(ValueError, match=message):
        parse_idx(content, "x")


@given(st.binary(max_size=64))
def test_B1_any_bytes_give_an_array_or_a_value_error(content):
    try:
        array = parse_idx(b"\0\0\x08" + content, "x")
    except ValueError:
        return
    assert array.nbytes <= len(content)


WHOLE = gzip.compress(bytes(1000), mtime=0)


@pytest.mark.parametrize(
    "content",
    [WHOLE[:-9], b"no gzip", WHOLE[:12] + b"xx" + WHOLE[14:]],
    ids=["cut", "foreign", "changed"],
)
def test_F12_a_broken_gzip_file_is_named(tmp_path, content):
    path = tmp_path / "labels.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"labels\.gz is no whole gzip file"):
        read_idx(path)
