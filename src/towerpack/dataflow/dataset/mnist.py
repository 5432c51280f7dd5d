"""MNIST, its sample and Fashion-MNIST: small gray images in the IDX format.

An IDX file is a magic number, the shape, and the bytes of one array.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core.files import DownloadError, download
from towerpack.dataflow.dataset.download import check_part, place_of
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.source.stored import ShuffledSource, shuffle_train

UNSIGNED_BYTES = 0x08  # the one element type that these data sets use
_SCALE = np.float32(1 / 255)


class GrayImages(ShuffledSource):
    """Datapoints `[image, label]`: float32 pixels from 0 to 1, and an int32 label.

    Random access; every image once per epoch. The images stay bytes in memory, a quarter of the
    floats' size, and are scaled when they are read: `BatchData` scales a whole batch at once.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, shuffle: bool, seed: int = 0):
        super().__init__(shuffle, seed)
        self.images, self.labels = images, labels.astype(np.int32)

    def __len__(self) -> int:
        return len(self.labels)

    def stored(self, row: int) -> Any:
        return [self.images[row] * _SCALE, self.labels[row]]

    def stored_rows(self, rows: np.ndarray) -> list[Any]:
        images = self.images[rows] * _SCALE
        return [[image, label] for image, label in zip(images, self.labels[rows], strict=True)]

    def gather(self, indices: Sequence[int] | np.ndarray, epoch: Epoch) -> Any:
        rows = self.places(indices, epoch)
        images = epoch.allocate((len(rows), *self.images.shape[1:]), np.dtype(np.float32))
        labels = epoch.allocate((len(rows),), self.labels.dtype)
        np.multiply(self.images[rows], _SCALE, out=images)
        return [images, np.take(self.labels, rows, out=labels, mode="clip")]


IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


@dataclass(frozen=True)
class IdxSet:
    """A data set of four IDX files: where they are searched for, and where they come from."""

    title: str
    folder: str  # in the directory of the data sets
    addresses: tuple[str, ...]
    sha256: dict[str, str]  # of each file, raw and `.gz`; '-ubyte' is left out of the names
    advice: str
    also_in: tuple[Path, ...] = ()  # directories that are read but never written

    def load(self, name: str, dir: str | Path | None) -> tuple[np.ndarray, np.ndarray]:
        """The images and labels of a part, from `dir` if given, else from the cache or the network.

        The checksum of each file's content is compared.
        """
        check_part(name, IDX_FILES)
        images, labels = (self._load(file, dir) for file in IDX_FILES[name])
        return images, labels

    def _load(self, file: str, dir: str | Path | None) -> np.ndarray:
        path = self._find(file, dir)
        content = read_idx(path)
        expected, found = self._sum_of(file), hashlib.sha256(content).hexdigest()
        if found != expected:
            raise ValueError(
                f"{path} is not {self.title}'s {file}: expected content of sha256 {expected}, "
                f"received {found}; delete it and fetch it again"
            )
        return parse_idx(content, str(path))

    def _sum_of(self, file: str) -> str:
        return self.sha256[file.replace("-ubyte", "")]

    def _find(self, file: str, dir: str | Path | None) -> Path:
        packed = f"{file}.gz"
        cache = place_of(dir, self.folder)
        for place in (cache, *(self.also_in if dir is None else ())):
            for name in (file, packed):
                if (place / name).is_file():
                    return place / name
        names = ", ".join(f"{name}.gz" for files in IDX_FILES.values() for name in files)
        advice = f"put {names} (or the same without .gz) into {cache}, or {self.advice}"
        if dir is not None:
            raise FileNotFoundError(f"{cache} has no {file}[.gz]; {advice}")
        addresses = [url + packed for url in self.addresses]
        try:
            return download(addresses, cache / packed, self._sum_of(packed))
        except DownloadError as error:
            raise DownloadError(f"{error}\n{advice}") from error


def read_idx(path: str | Path) -> bytes:
    """The content of an IDX file, uncompressed if its name ends in `.gz`."""
    path = Path(path)
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is not a whole gzip file ({error}); delete it and fetch it again"
        ) from error


def parse_idx(content: bytes, name: str) -> np.ndarray:
    """The read-only array of an IDX file's content; errors call it `name`.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), "labels")
    array([7, 8, 9], dtype=uint8)
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != UNSIGNED_BYTES:
        raise ValueError(
            f"{name} is not an IDX file of unsigned bytes: expected it to begin with 00 00 08, "
            f"received {content[:3].hex(' ')}"
        )
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise ValueError(f"{name} ends within its header; delete it and fetch it again")
    shape = [int(size) for size in np.frombuffer(content, ">u4", dimensions, offset=4)]
    if len(content) - start != math.prod(shape):
        raise ValueError(
            f"{name} should hold {math.prod(shape)} bytes after its header (shape {shape}), "
            f"received {len(content) - start}; delete it and fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


# The authors' own address, which is often closed, and the mirror of the Common Visual Data
# Foundation. The checksums make either of them safe.
MNIST = IdxSet(
    "MNIST",
    "mnist_data",
    ("https://yann.lecun.com/exdb/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    {
        "train-images-idx3": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-images-idx3.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "train-labels-idx1.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-images-idx3.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        "t10k-labels-idx1.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    "use dataset.MnistSample, which ships with towerpack",
)
# Keras' copy first, since the authors' server has no https; the checksums make both safe.
FASHION_MNIST = IdxSet(
    "Fashion-MNIST",
    "fashion_mnist_data",
    (
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    {
        "train-images-idx3": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-images-idx3.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "train-labels-idx1.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-images-idx3.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        "t10k-labels-idx1.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
    "install the Debian package dataset-fashion-mnist",
    (Path("/usr/share/datasets/fashion-mnist"),),  # where that package puts the files
)
FASHION_LABELS = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


class IdxImages(GrayImages):
    """Base of the sets in IDX files; a subclass states which one is its `kind`."""

    kind: IdxSet

    def __init__(
        self, name: str, shuffle: bool | None = None, dir: str | Path | None = None, seed: int = 0
    ):
        super().__init__(*self.kind.load(name, dir), shuffle_train(name, shuffle), seed)


class Mnist(IdxImages):
    """The full MNIST, `[28x28 float32 0..1, label]`; `name` is 'train' or 'test'.

    Random access; every image once per epoch; only 'train' is shuffled by default. The four files,
    raw or `.gz`, are read from `dir`, else from `get_dataset_path('mnist_data')`, where missing
    ones are downloaded to. Their SHA-256 sums are compared. `MnistSample` is a small part of MNIST
    that needs no download.
    """

    kind = MNIST


class FashionMnist(IdxImages):
    """Fashion-MNIST, `[28x28 float32 0..1, label]`; `name` is 'train' or 'test'.

    Random access; every image once per epoch; only 'train' is shuffled by default. The files are
    read from `dir`, else from `get_dataset_path('fashion_mnist_data')` or where the Debian package
    `dataset-fashion-mnist` puts them, else downloaded. Their checksums are compared.
    """

    kind = FASHION_MNIST

    @staticmethod
    def get_label_names() -> list[str]:
        """The ten kinds of clothes, by label."""
        return list(FASHION_LABELS)


SAMPLE_FILE = "mnist_sample.npz"  # made by scripts/make_mnist_sample.py
SAMPLE_SIZES = {"train": 5_000, "test": 1_000}


class MnistSample(GrayImages):
    """The first 5,000 training or 1,000 test images of MNIST; `name` is 'train' or 'test'.

    Datapoints are `[28x28 float32 0..1, label]`, like those of `Mnist`. Random access; every image
    once per epoch; only 'train' is shuffled by default. It ships with the package (less than 1 MB)
    and needs no network. Origin and licence (CC BY-SA 3.0) are in `mnist_sample.LICENSE.md` next to
    the file.

    >>> digits = MnistSample('test', shuffle=False)
    >>> image, label = digits[0]
    >>> len(digits), image.shape, int(label)
    (1000, (28, 28), 7)
    """

    def __init__(self, name: str, shuffle: bool | None = None, seed: int = 0):
        check_part(name, SAMPLE_SIZES)
        with (
            resources.files(__package__).joinpath(SAMPLE_FILE).open("rb") as file,
            np.load(file, allow_pickle=False) as arrays,
        ):
            images, labels = arrays[f"{name}_images"], arrays[f"{name}_labels"]
        super().__init__(images, labels, shuffle_train(name, shuffle), seed)
