"""What both examples train on: pictures from -1 to 1, and the noise that generators start from."""

import numpy as np

from towerpack import BatchData, DataFlow, FakeData, JoinData, MapData, dataset

NOISE = 64
IMAGE = 28


def pictures_and_noise(batch: int, quick: bool) -> DataFlow:
    """Batches `[picture, z]` of Fashion-MNIST; of the digits in the package if `quick`."""
    source = dataset.MnistSample("train") if quick else dataset.FashionMnist("train")
    pictures = MapData(BatchData(source, batch), lambda dp: [dp[0][..., None] * 2 - 1])
    noise = FakeData([[batch, NOISE]], size=len(pictures), domain=(-1, 1), seed=1)
    return JoinData([pictures, noise])


def fixed_noise(count: int) -> np.ndarray:
    """The noise whose pictures are drawn again and again while the generator learns."""
    return np.random.default_rng(0).uniform(-1, 1, (count, NOISE)).astype(np.float32)
