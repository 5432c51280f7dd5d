"""MNIST's kin: on small files of the same format, since the full sets cannot be had everywhere."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import http.server
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towerpack.core.files import DownloadError
from towerpack.dataflow.dataset import FashionMnist, Mnist, MnistSample, get_dataset_path, mnist
from towerpack.dataflow.dataset.mnist import parse_idx, read_idx
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.stage.batch import BatchData

(DEBIAN,) = mnist.FASHION_MNIST.also_in
needs_debian = pytest.mark.skipif(
    not DEBIAN.is_dir(), reason="needs the Debian package dataset-fashion-mnist"
)
COUNT = {"train": 6, "test": 4}


@pytest.fixture
def files(monkeypatch) -> dict[str, bytes]:
    """{name: content} of a little MNIST, whose sums take the place of the true ones."""
    contents, sums = {}, {}
    generator = np.random.default_rng(0)
    for split, (images, labels) in mnist.IDX_FILES.items():
        contents[images] = idx_bytes(generator.integers(256, size=(COUNT[split], 28, 28)))
        contents[labels] = idx_bytes(np.arange(COUNT[split]))
    for name, content in contents.items():
        key, packed = name.replace("-ubyte", ""), gzip.compress(content, mtime=0)
        sums[key] = hashlib.sha256(content).hexdigest()
        sums[f"{key}.gz"] = hashlib.sha256(packed).hexdigest()
    monkeypatch.setattr(Mnist, "kind", dataclasses.replace(Mnist.kind, sha256=sums))
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
        addresses = (f"{base}/closed/", f"{base}/")
        monkeypatch.setattr(Mnist, "kind", dataclasses.replace(Mnist.kind, addresses=addresses))
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


# The IDX format


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
        (b"", "x is not an IDX file"),
        (b"\x89PNG\r\n", "received 89 50 4e"),
        (b"\0\0\x0d\x01\0\0\0\x01abcd", "not an IDX file of unsigned bytes"),
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
    with pytest.raises(ValueError, match=r"labels\.gz is not a whole gzip file"):
        read_idx(path)


# Fashion-MNIST


@needs_debian
@pytest.mark.parametrize(("name", "size"), [("train", 60_000), ("test", 10_000)])
def test_the_debian_packages_files_are_found_and_their_sums_fit(name, size):
    flow = FashionMnist(name)
    assert len(flow) == size and set(np.bincount(flow.labels)) == {size // 10}
    image, label = flow[0]
    assert (image.shape, image.dtype, image.max() <= 1) == ((28, 28), np.float32, True)
    assert FashionMnist.get_label_names()[int(label)] in mnist.FASHION_LABELS


@needs_debian
def test_a_named_dir_is_taken_alone(tmp_path):
    with pytest.raises(FileNotFoundError, match="has no t10k-images-idx3-ubyte"):
        FashionMnist("test", dir=tmp_path)
    assert len(FashionMnist("test", dir=DEBIAN)) == 10_000
    with pytest.raises(ValueError, match="expected 'train' or 'test'"):
        FashionMnist("val")


# The sample

# Of the first bytes of the four original files, after their headers.
ORIGINAL = {
    "train_images": "a853ca5da5c224d531837eaa3fe56ac036778bb2fdfad445143b5b7d4ec1c739",
    "train_labels": "4263f048ea43702387ef1c8494b59e785853c0410e9770600d50f541a6fee264",
    "test_images": "f8f3c5a608a9f7d4bd5e9d69b90c53932b8b99371d9db26121b42f62f3abcd56",
    "test_labels": "d14ba0a1a3818edefa35518ed001ece84b7ac0eabe9394551c73928493175d3f",
}


def test_the_file_is_small_and_holds_the_original_bytes():
    path = Path(mnist.__file__).with_name(mnist.SAMPLE_FILE)
    assert path.stat().st_size < 1_000_000
    assert path.with_name("mnist_sample.LICENSE.md").is_file()
    with np.load(path, allow_pickle=False) as arrays:
        sums = {name: hashlib.sha256(arrays[name].tobytes()).hexdigest() for name in arrays.files}
    assert sums == ORIGINAL


@pytest.mark.parametrize(("name", "size"), [("train", 5000), ("test", 1000)])
def test_datapoints_of_the_sample(name, size):
    flow = MnistSample(name, shuffle=False)
    assert len(flow) == size and flow.random_access
    image, label = flow[3]
    assert (image.shape, image.dtype, label.dtype) == ((28, 28), np.float32, np.int32)
    assert image.min() == 0 and 0.9 < image.max() <= 1
    assert set(np.bincount(flow.labels) > size / 15) == {True}


def test_shuffle_gives_every_image_once_in_another_order_each_epoch():
    flow = MnistSample("test", shuffle=True)
    first, second = ([int(label) for _, label in flow] for _ in range(2))
    assert first != second and sorted(first) == sorted(second) == sorted(flow.labels.tolist())
    assert [int(label) for _, label in MnistSample("test", True)] == first
    assert [int(label) for _, label in MnistSample("test", True, seed=1)] != first


def test_a_batch_equals_its_rows_bit_for_bit():
    flow = MnistSample("test", shuffle=True)
    images, labels = BatchData(flow, 7).read([2], Epoch(3))[0]
    for offset in range(7):
        image, label = flow.read([14 + offset], Epoch(3))[0]
        np.testing.assert_array_equal(images[offset], image)
        assert labels[offset] == label
    rows = flow.read(range(14, 21), Epoch(3))
    np.testing.assert_array_equal(np.stack([image for image, _ in rows]), images)


def test_an_unknown_part_of_the_sample_is_refused():
    with pytest.raises(ValueError, match="expected 'train' or 'test', received 'valid'"):
        MnistSample("valid")
