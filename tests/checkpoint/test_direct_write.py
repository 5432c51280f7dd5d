import errno
import mmap
import os

import numpy as np
import pytest

from towerpack.checkpoint import direct_write
from towerpack.checkpoint.direct_write import DirectFile

BUFFER = direct_write._BUFFER


@pytest.mark.parametrize("size", [0, 1, 4096, BUFFER - 1, BUFFER, BUFFER + 1, 3 * BUFFER + 5000])
def test_what_is_written_is_in_the_file(tmp_path, size):
    content = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    with DirectFile(tmp_path / "file") as file:
        for start in range(0, size, 1_000_003):  # in pieces that fit no block
            file.write(content[start : start + 1_000_003].data)
    assert (tmp_path / "file").read_bytes() == content.tobytes()


@pytest.mark.parametrize("offset", [0, 1])
def test_whole_blocks_on_a_page_are_written_from_where_they_lie(tmp_path, monkeypatch, offset):
    memory = np.frombuffer(mmap.mmap(-1, 3 * BUFFER), np.uint8)
    memory[...] = np.random.default_rng(0).integers(0, 256, memory.size, dtype=np.uint8)
    content, places, real = memory[offset : 2 * BUFFER + 5000], [], os.write

    def write(descriptor, view):
        places.append(np.frombuffer(view, np.uint8).ctypes.data - memory.ctypes.data)
        return real(descriptor, view)

    monkeypatch.setattr(os, "write", write)
    with DirectFile(tmp_path / "file") as file:
        file.write(content.data)
        file.write(content[:100].data)
    assert (tmp_path / "file").read_bytes() == content.tobytes() + content[:100].tobytes()
    assert (places[0] == 0) == (offset == 0)


def test_where_direct_writes_are_refused_the_page_cache_is_used(tmp_path, monkeypatch):
    real_open, real_write, refused = os.open, os.write, []

    def refusing_open(path, flags, *mode):
        if flags & direct_write._DIRECT:
            refused.append("open")
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_open(path, flags, *mode)

    def refusing_write(descriptor, content):
        if not refused:
            refused.append("write")
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_write(descriptor, content)

    content = bytes(range(256)) * (BUFFER // 128)
    for name, stand_in in (("open", refusing_open), ("write", refusing_write)):
        refused.clear()
        with monkeypatch.context() as patch:
            patch.setattr(os, name, stand_in)
            with DirectFile(tmp_path / "file") as file:
                file.write(content)
        assert refused == [name]
        assert (tmp_path / "file").read_bytes() == content


def test_half_a_block_that_was_written_is_gone_on_from(tmp_path, monkeypatch):
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda fd, content: real_write(fd, content[:1_000_001]))
    content = np.random.default_rng(0).bytes(2 * BUFFER)
    with DirectFile(tmp_path / "file") as file:
        file.write(content)
    assert (tmp_path / "file").read_bytes() == content


def test_an_error_is_not_covered_by_another(tmp_path):
    file = DirectFile(tmp_path / "file")
    with pytest.raises(KeyError), file:
        file.write(b"abc")
        raise KeyError("mine")
    file.close()
    assert (tmp_path / "file").read_bytes() == b""
