import errno
import os

import numpy as np
import pytest

from towerpack.checkpoint import bundle
from towerpack.checkpoint.bundle import DATA_SUFFIX, DIRECT_BLOCK, write_bundle
from towerpack.checkpoint.snapshot import Snapshot

AT_ONCE = bundle._DIRECT_WRITE


def packed(size):
    content = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    return content, Snapshot().take({"a": content[: size // 3], "b": content[size // 3 :]})


def written(directory, arrays):
    write_bundle(directory / "model", arrays)
    return (directory / f"model{DATA_SUFFIX}").read_bytes()


@pytest.mark.parametrize(
    "size", [0, 1, DIRECT_BLOCK, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE + 5000]
)
def test_packed_arrays_of_any_size_are_in_the_file(tmp_path, size):
    content, arrays = packed(size)
    assert written(tmp_path, arrays) == content.tobytes()


def test_whole_blocks_of_packed_arrays_are_written_without_a_copy(tmp_path, monkeypatch):
    content, arrays = packed(AT_ONCE + 5000)
    places, real = [], os.write

    def write(descriptor, view):
        places.append(np.frombuffer(view, np.uint8).ctypes.data - arrays.memory.ctypes.data)
        return real(descriptor, view)

    monkeypatch.setattr(os, "write", write)
    assert arrays.memory.ctypes.data % DIRECT_BLOCK == 0
    assert written(tmp_path, arrays) == content.tobytes()
    assert places in ([0, AT_ONCE], [0], [])  # refused by some file systems


def test_where_direct_writes_are_refused_the_page_cache_is_used(tmp_path, monkeypatch):
    real_open, real_write, refused = os.open, os.write, []

    def refusing_open(path, flags, *mode):
        if flags & bundle._DIRECT:
            refused.append("open")
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_open(path, flags, *mode)

    def refusing_write(descriptor, content):
        if not refused:
            refused.append("write")
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_write(descriptor, content)

    content, arrays = packed(2 * AT_ONCE)
    for name, stand_in in (("open", refusing_open), ("write", refusing_write)):
        refused.clear()
        with monkeypatch.context() as patch:
            patch.setattr(os, name, stand_in)
            assert written(tmp_path, arrays) == content.tobytes()
        assert refused == [name]


def test_a_partly_written_block_is_completed(tmp_path, monkeypatch):
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda fd, content: real_write(fd, content[:1_000_001]))
    content, arrays = packed(2 * AT_ONCE)
    assert written(tmp_path, arrays) == content.tobytes()


def test_another_error_of_a_direct_write_is_raised(tmp_path, monkeypatch):
    def full(descriptor, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        written(tmp_path, packed(AT_ONCE)[1])
