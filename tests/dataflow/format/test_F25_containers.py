"""F25: a damaged container is an error that names it, never a shorter data set in silence."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.dataflow.format.mutations import FORMATS, save_tar
from towerpack.cli.app import app
from towerpack.dataflow import CorruptRecord, DataFromList, TarData
from towerpack.dataflow.format.lmdb import LMDBData, LMDBSerializer
from towerpack.dataflow.format.numpy_files import NumpyFiles, load_arrays

ROOT = Path(__file__).parents[3]


def mutate(name: str, count: int, seed: int) -> dict[str, int]:
    """Damages a file `count` times; gives how often what happened."""
    program = [sys.executable, "-W", "ignore", "-m", "tests.dataflow.format.mutations"]
    run = subprocess.run(
        [*program, name, str(count), str(seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert result["violations"] == []
    return result["counts"]


@pytest.mark.parametrize("name", FORMATS)
def test_F25_no_damage_is_a_silent_loss(name):
    assert mutate(name, 60, seed=1)["error"] > 10


@pytest.mark.soak
@pytest.mark.parametrize("name", FORMATS)
def test_F25_no_damage_of_1000_is_a_silent_loss(name):
    counts = mutate(name, 1000, seed=0)
    print(f"{name}: {counts}")
    assert sum(counts.values()) > 900


def verify(path):
    return CliRunner().invoke(app, ["data", "verify", str(path)])


def headers(path):
    with tarfile.open(path) as archive:
        return [member.offset_data - tarfile.BLOCKSIZE for member in archive]


def foreign_tar(path):
    """As another program writes it: without the number of its members."""
    save_tar(path)
    with tarfile.open(path) as source:
        members = [(member, source.extractfile(member).read()) for member in source]
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as target:
        for member, data in members:
            plain = tarfile.TarInfo(member.name)
            plain.size = len(data)
            target.addfile(plain, io.BytesIO(data))


@pytest.mark.parametrize("damage", ["flip", "zero", "cut"])
def test_F25_a_damaged_tar_header_is_an_error_at_its_offset(tmp_path, damage):
    path = tmp_path / "x.tar"
    foreign_tar(path)
    assert len(TarData(path)) == 24
    content, place = bytearray(path.read_bytes()), headers(path)[20]
    if damage == "flip":
        content[place + 3] ^= 4
    elif damage == "zero":
        content[place : place + tarfile.BLOCKSIZE] = bytes(tarfile.BLOCKSIZE)
    else:
        del content[place:]
    path.write_bytes(content)
    with pytest.raises(CorruptRecord, match=f"{path} .* at offset {place}"):
        TarData(path)
    assert len(TarData(path, on_error="skip")) == 10
    found = verify(path)
    assert found.exit_code == 1 and f"offset {place}" in found.output


def test_F25_a_tar_file_that_ends_in_zeros_lacks_members(tmp_path):
    path = tmp_path / "x.tar"
    save_tar(path)
    content, place = path.read_bytes(), headers(path)[40]
    path.write_bytes(content[:place] + bytes(len(content) - place))
    with pytest.raises(CorruptRecord, match="it has 40 members, its first header says '.* 0*48';"):
        TarData(path)


@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize("bit", [0, 1, 5, 40])
def test_F25_a_flipped_bit_in_the_transaction_of_an_lmdb_meta_page_is_an_error(tmp_path, page, bit):
    path = tmp_path / "x.lmdb"
    LMDBSerializer.save(
        DataFromList([[i] for i in range(30)], shuffle=False), path, write_frequency=10
    )
    content = bytearray(path.read_bytes())
    (page_size,) = struct.unpack_from("<I", content, 16 + 24)
    content[page * page_size + 16 + 128 + bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    with pytest.raises(CorruptRecord, match=f"{path} is a damaged .* its meta pages"):
        LMDBData(path)
    found = verify(path)
    assert found.exit_code == 1 and str(path) in found.output


def test_F25_a_damaged_magic_of_the_second_lmdb_meta_page_is_an_error(tmp_path):
    path = tmp_path / "x.lmdb"
    LMDBSerializer.save(DataFromList([[1], [2]], shuffle=False), path)
    content = bytearray(path.read_bytes())
    (page_size,) = struct.unpack_from("<I", content, 16 + 24)
    content[page_size + 16] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptRecord, match="its second meta page"):
        LMDBData(path)


@pytest.mark.parametrize(
    "content", [b"", b"garbage" * 100, b"PK\x03\x04" + bytes(100), b"\x80\x04."]
)
def test_B6_a_garbage_npz_is_our_error_without_advice_to_allow_pickles(tmp_path, content):
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    for read in (lambda: load_arrays(path), lambda: NumpyFiles([path])[0]):
        with pytest.raises(CorruptRecord, match=str(path)) as caught:
            read()
        assert "allow_pickle" not in str(caught.value)


def test_F25_an_npy_header_that_says_fewer_rows_is_an_error(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, x=np.zeros(29))
    damaged = path.read_bytes().replace(b"(29,)", b"(21,)")
    path.write_bytes(damaged)
    with pytest.raises(CorruptRecord, match="x.npz, x.npy"):
        load_arrays(path)


def test_B1_deeply_nested_json_in_a_tar_is_our_error(tmp_path):
    path = tmp_path / "x.tar"
    save_tar(path)
    with tarfile.open(path, "w") as archive:
        data = b"[" * 100_000
        member = tarfile.TarInfo("a.json")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    with pytest.raises(CorruptRecord, match=f"{path}, member a.json cannot be decoded"):
        TarData(path)[0]
