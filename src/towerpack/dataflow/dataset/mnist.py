"""MNIST: 60,000 training and 10,000 test images of handwritten digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from towerpack.dataflow.dataset.gray_images import GrayImages
from towerpack.dataflow.dataset.idx_files import IdxFile, IdxSet
from towerpack.dataflow.dataset.location import get_dataset_path
from towerpack.dataflow.shuffled_source import shuffle_train

# The authors' own address first; it is often closed, and the second is the mirror of the Common
# Visual Data Foundation. The sums decide what is accepted from either.
ADDRESSES = (
    "https://yann.lecun.com/exdb/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


SPLITS = {
    "train": (
        IdxFile(
            "train-images-idx3-ubyte",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        IdxFile(
            "train-labels-idx1-ubyte",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
    ),
    "test": (
        IdxFile(
            "t10k-images-idx3-ubyte",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        IdxFile(
            "t10k-labels-idx1-ubyte",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
}


class Mnist(GrayImages):
    """The full MNIST, `[28x28 float32 0..1, label]`; `name` is 'train' or 'test'.

    Random access; every image once per pass, in an order of (seed, epoch) when shuffled,
    as 'train' is by default. The four
    files, raw or `.gz`, are read from `dir`, else from `get_dataset_path('mnist_data')`, where they
    are downloaded to if they are missing. Their SHA-256 sums are checked: it is MNIST, or an error.
    `MnistSample` is a small part of it that needs no download.
    """

    def __init__(
        self,
        name: str,
        shuffle: bool | None = None,
        dir: str | Path | None = None,
        seed: int = 0,
    ):
        if name not in SPLITS:
            raise ValueError(f"expected 'train' or 'test', received {name!r}")
        images, labels = (load_file(file, dir) for file in SPLITS[name])
        super().__init__(images, labels, shuffle_train(name, shuffle), seed)


def load_file(file: IdxFile, dir: str | Path | None) -> np.ndarray:
    """One file's array, from `dir` if given, else from the cache, else downloaded to the cache."""
    names = [f"{file.name}.gz" for files in SPLITS.values() for file in files]
    advice = (
        f"put {', '.join(names)} (or the same without .gz) into {{place}}, or use "
        "dataset.MnistSample, which ships with towerpack"
    )
    return IdxSet("MNIST", get_dataset_path("mnist_data"), ADDRESSES, advice).load(file, dir)
