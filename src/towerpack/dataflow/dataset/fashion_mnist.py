"""Fashion-MNIST: 60,000 training and 10,000 test images of clothes, in MNIST's form."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from towerpack.dataflow.dataset.gray_images import GrayImages
from towerpack.dataflow.dataset.idx_files import IdxFile, IdxSet
from towerpack.dataflow.dataset.location import get_dataset_path
from towerpack.dataflow.shuffled_source import shuffle_train

# Keras' copy first, since the authors' server speaks no https; the sums decide.
ADDRESSES = (
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
# Where the Debian package dataset-fashion-mnist puts the files.
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
LABELS = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)

SPLITS = {
    "train": (
        IdxFile(
            "train-images-idx3-ubyte",
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        IdxFile(
            "train-labels-idx1-ubyte",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        ),
    ),
    "test": (
        IdxFile(
            "t10k-images-idx3-ubyte",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        ),
        IdxFile(
            "t10k-labels-idx1-ubyte",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
}


class FashionMnist(GrayImages):
    """Fashion-MNIST, `[28x28 float32 0..1, label]`; `name` is 'train' or 'test'.

    Random access; every image once per pass, in an order of (seed, epoch) when shuffled,
    as 'train' is by default. The files
    are read from `dir`, else from `get_dataset_path('fashion_mnist_data')` or where the Debian
    package `dataset-fashion-mnist` puts them, else downloaded. Their sums are checked.
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

    @staticmethod
    def get_label_names() -> list[str]:
        """The ten kinds of clothes, by label."""
        return list(LABELS)


def load_file(file: IdxFile, dir: str | Path | None) -> np.ndarray:
    names = ", ".join(f"{file.name}.gz" for files in SPLITS.values() for file in files)
    advice = (
        f"put {names} (or the same without .gz) into {{place}}, or install the Debian package "
        "dataset-fashion-mnist"
    )
    place = get_dataset_path("fashion_mnist_data")
    return IdxSet("Fashion-MNIST", place, ADDRESSES, advice, [DEBIAN]).load(file, dir)
