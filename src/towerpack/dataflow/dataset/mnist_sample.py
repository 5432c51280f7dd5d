"""The digits that ship in the package: the first images of MNIST's two parts."""

from __future__ import annotations

from importlib import resources

import numpy as np

from towerpack.dataflow.dataset.gray_images import GrayImages
from towerpack.dataflow.shuffled_source import shuffle_train

FILE = "mnist_sample.npz"  # made by scripts/make_mnist_sample.py
SIZES = {"train": 5_000, "test": 1_000}


class MnistSample(GrayImages):
    """The first 5,000 training or 1,000 test images of MNIST; `name` is 'train' or 'test'.

    Datapoints are `[28x28 float32 0..1, label]`, as of `Mnist`. Random access; every image once per
    pass, in an order of (seed, epoch) when shuffled,
    as 'train' is by default. No network, under 1 MB. Origin and licence
    (CC BY-SA 3.0) stand beside the file, in `mnist_sample.LICENSE.md`.

    >>> digits = MnistSample('test', shuffle=False)
    >>> image, label = digits[0]
    >>> len(digits), image.shape, int(label)
    (1000, (28, 28), 7)
    """

    def __init__(self, name: str, shuffle: bool | None = None, seed: int = 0):
        if name not in SIZES:
            raise ValueError(f"expected 'train' or 'test', received {name!r}")
        with (
            resources.files(__package__).joinpath(FILE).open("rb") as file,
            np.load(file, allow_pickle=False) as arrays,
        ):
            images, labels = arrays[f"{name}_images"], arrays[f"{name}_labels"]
        super().__init__(images, labels, shuffle_train(name, shuffle), seed)
