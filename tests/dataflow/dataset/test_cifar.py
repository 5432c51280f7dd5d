"""The CIFAR sets on small files of the same format."""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from towerpack.dataflow import UnsafePickle
from towerpack.dataflow.dataset import Cifar10, Cifar100, cifar, get_dataset_path

IMAGES = np.random.default_rng(0).integers(0, 255, (25, 3, 32, 32), dtype=np.uint8)
CASES = [(Cifar10, cifar.CIFAR10), (Cifar100, cifar.CIFAR100)]


def python_2(value) -> bytes:
    """A protocol 2 pickle in which text is Python 2's `str`, as the official files have it."""
    if isinstance(value, bytes):
        return b"T" + len(value).to_bytes(4, "little") + value
    if isinstance(value, list):
        return b"](" + b"".join(map(python_2, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(python_2(k) + python_2(v) for k, v in value.items()) + b"u"
    if isinstance(value, int):
        return b"J" + value.to_bytes(4, "little", signed=True)
    content = value.tobytes()
    return (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0tU\x01btR(K\x01"
        + b"(" + b"".join(map(python_2, value.shape)) + b"t"
        + b"cnumpy\ndtype\n(U\x02u1K\0K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
        + b"\x89" + python_2(content) + b"tb"
    )  # fmt: skip


def dump(value) -> bytes:
    return b"\x80\x02" + python_2(value) + b"."


def write(place: Path, kind: cifar.CifarSet) -> None:
    folder = place / kind.folder
    folder.mkdir(parents=True)
    parts = np.array_split(np.arange(25), 5)
    for split, files in kind.files.items():
        rows = parts if len(files) == 5 else [parts[0]]
        for file, part in zip(files, rows, strict=True):
            batch = {
                b"batch_label": b"a batch",
                b"data": IMAGES[part].reshape(len(part), -1),
                kind.label: [int(i) % 10 for i in part],
                b"filenames": [b"x.png"] * len(part),
            }
            (folder / file).write_bytes(dump(batch))
        assert split in ("train", "test")
    names = [b"name %d" % i for i in range(10)]
    (folder / kind.names_file).write_bytes(dump({kind.names: names}))


@pytest.mark.parametrize(("dataset", "kind"), CASES)
def test_datapoints(dataset, kind, tmp_path):
    write(tmp_path, kind)
    count = 25 if len(kind.files["train"]) == 5 else 5
    flow = dataset("train", shuffle=False, dir=tmp_path)
    assert len(flow) == count
    for i, (image, label) in enumerate(flow):
        np.testing.assert_array_equal(image, IMAGES[i].transpose(1, 2, 0))
        assert image.dtype == np.uint8 and label == i % 10
    assert dataset("train", dir=tmp_path).shuffle and not dataset("test", dir=tmp_path).shuffle
    assert len(dataset("test", dir=tmp_path)) == 5
    assert flow.get_label_names()[3] == "name 3"
    mean = flow.get_per_pixel_mean(["train"])
    np.testing.assert_allclose(mean, IMAGES[:count].mean(axis=0).transpose(1, 2, 0), rtol=1e-5)
    both = np.concatenate([IMAGES[:count], IMAGES[:5]]).mean(axis=(0, 2, 3))
    np.testing.assert_allclose(flow.get_per_channel_mean(), both, rtol=1e-5)
    # the folder itself may be named too
    assert len(dataset("test", dir=tmp_path / kind.folder)) == 5


def test_the_archive_is_unpacked(tmp_path, monkeypatch):
    write(tmp_path / "made", cifar.CIFAR10)
    place = get_dataset_path("cifar10_data")
    place.mkdir(parents=True)
    archive = place / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "made" / cifar.CIFAR10.folder, cifar.CIFAR10.folder)
    # Fetched, checked by its sum, unpacked.
    url = archive.rename(tmp_path / archive.name).as_uri()
    sum_ = hashlib.sha256((tmp_path / archive.name).read_bytes()).hexdigest()
    monkeypatch.setattr(Cifar10, "kind", replace(cifar.CIFAR10, url=url, sha256=sum_))
    assert len(Cifar10("train")) == 25
    assert {p.name for p in place.iterdir()} == {"cifar-10-python.tar.gz", "cifar-10-batches-py"}


def test_F12_an_archive_on_the_disk_is_checked(tmp_path):
    write(tmp_path / "made", cifar.CIFAR10)
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "made" / cifar.CIFAR10.folder, cifar.CIFAR10.folder)
    with pytest.raises(ValueError, match="cifar-10-python.tar.gz is damaged .* expected sha256"):
        Cifar10("test", dir=tmp_path)
    assert not (tmp_path / cifar.CIFAR10.folder).exists()


def test_B6_an_archive_that_reaches_out_is_refused(tmp_path, monkeypatch):
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("../owned")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    sum_ = hashlib.sha256((tmp_path / "cifar-10-python.tar.gz").read_bytes()).hexdigest()
    monkeypatch.setattr(Cifar10, "kind", replace(cifar.CIFAR10, sha256=sum_))
    with pytest.raises(ValueError, match="cannot be unpacked"):
        Cifar10("test", dir=tmp_path)
    assert not (tmp_path.parent / "owned").exists()


class Touch:
    def __reduce__(self):
        return Path.touch, (Path("owned"),)


def test_B6_a_malicious_batch_is_refused(tmp_path):
    write(tmp_path, cifar.CIFAR10)
    path = tmp_path / cifar.CIFAR10.folder / "test_batch"
    path.write_bytes(pickle.dumps({b"data": Touch()}))
    with pytest.raises(UnsafePickle, match="test_batch: it asks for"):
        Cifar10("test", dir=tmp_path)
    assert not Path("owned").exists()


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="has neither cifar-10-batches-py nor cifar-10-py"):
        Cifar10("train", dir=tmp_path)
    with pytest.raises(ValueError, match="expected 'train' or 'test', received 'val'"):
        Cifar10("val")
