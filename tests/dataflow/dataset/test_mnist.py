"""`Mnist` on small files of the same format: the set itself cannot be had everywhere."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.dataflow.dataset.test_idx import idx_bytes
from towerpack.core.files import DownloadError
from towerpack.dataflow.dataset import Mnist, get_dataset_path, mnist

COUNT = {"train": 6, "test": 4}


@pytest.fixture
def files(monkeypatch) -> dict[str, bytes]:
    """{name: content} of a little MNIST, whose sums take the place of the true ones."""
    contents, splits = {}, {}
    generator = np.random.default_rng(0)
    for split, (images, labels) in mnist.SPLITS.items():
        contents[images.name] = idx_bytes(generator.integers(256, size=(COUNT[split], 28, 28)))
        contents[labels.name] = idx_bytes(np.arange(COUNT[split]))
        splits[split] = tuple(
            mnist.IdxFile(
                file.name,
                hashlib.sha256(contents[file.name]).hexdigest(),
                hashlib.sha256(gzip.compress(contents[file.name], mtime=0)).hexdigest(),
            )
            for file in (images, labels)
        )
    monkeypatch.setattr(mnist, "SPLITS", splits)
    return contents


@pytest.fixture
def server(files, tmp_path, monkeypatch):
    """A loopback server of the four .gz files, in the place of the official addresses."""
    place = tmp_path / "served"
    write_gz(files, place)
    handler = functools.partial(QuietHandler, directory=str(place))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        base = f"http://127.0.0.1:{httpd.server_port}"
        monkeypatch.setattr(mnist, "ADDRESSES", (f"{base}/closed/", f"{base}/"))
        yield place
        httpd.shutdown()
        thread.join()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def write_gz(files: dict[str, bytes], place: Path) -> None:
    place.mkdir()
    for name, content in files.items():
        (place / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))


def check(flow: Mnist, name: str) -> None:
    assert [int(label) for _, label in flow] == list(range(COUNT[name]))
    assert len(flow) == COUNT[name]
    assert flow[0][0].dtype == np.float32


@pytest.mark.parametrize("name", ["train", "test"])
def test_reads_raw_files_and_gz_files_from_dir(files, tmp_path, name):
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    check(Mnist(name, shuffle=False, dir=tmp_path), name)
    write_gz(files, tmp_path / "gz")
    check(Mnist(name, shuffle=False, dir=str(tmp_path / "gz")), name)


@pytest.mark.parametrize("variable", ["TOWERPACK_DATASET", "TENSORPACK_DATASET"])
def test_reads_from_the_cache_directory(files, tmp_path, monkeypatch, variable):
    monkeypatch.delenv("TOWERPACK_DATASET")
    monkeypatch.setenv(variable, str(tmp_path))
    write_gz(files, tmp_path / "mnist_data")
    check(Mnist("test", shuffle=False), "test")


def test_downloads_once_from_the_first_address_that_has_it(files, server):
    check(Mnist("train", shuffle=False), "train")
    names = sorted(path.name for path in get_dataset_path("mnist_data").iterdir())
    assert names == ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"]
    for path in server.iterdir():
        path.unlink()
    check(Mnist("train", shuffle=False), "train")


def test_what_cannot_be_had_says_where_to_put_it(files, server):
    for path in server.iterdir():
        path.write_bytes(b"something else")
    with pytest.raises(DownloadError) as caught:
        Mnist("test")
    text = str(caught.value)
    assert "/closed/t10k-images-idx3-ubyte.gz: HTTP Error 404" in text and "sha256" in text
    assert all(f"{name}.gz" in text for name in files)
    assert str(get_dataset_path("mnist_data")) in text and "dataset.MnistSample" in text
    assert not list(get_dataset_path("mnist_data").iterdir())


def test_a_dir_without_the_files_is_an_error_not_a_download(files, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no t10k-images-idx3-ubyte\[.gz\]; put"):
        Mnist("test", dir=tmp_path)


def test_F12_other_content_is_refused(files, tmp_path):
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    path = tmp_path / "t10k-images-idx3-ubyte"
    damaged = bytearray(path.read_bytes())
    damaged[100] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="is not MNIST's t10k-images-idx3-ubyte: expected content"):
        Mnist("test", dir=tmp_path)


def test_an_unknown_part_is_refused():
    with pytest.raises(ValueError, match="expected 'train' or 'test', received 'valid'"):
        Mnist("valid")


def test_without_variables_the_cache_is_in_the_home_directory(monkeypatch):
    for variable in ("TOWERPACK_DATASET", "TENSORPACK_DATASET", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    assert get_dataset_path("mnist_data") == Path.home() / ".cache" / "towerpack" / "mnist_data"
