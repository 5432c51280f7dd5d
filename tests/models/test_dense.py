import numpy as np
import pytest

from tests.models.building import build
from towerpack.models import (
    Embedding,
    FullyConnected,
)

IMAGE = np.random.default_rng(0).normal(size=(2, 4, 6, 4)).astype(np.float32)
SEQUENCE = np.random.default_rng(1).normal(size=(3, 5, 4)).astype(np.float32)


@pytest.fixture
def image():
    return np.random.default_rng(0).normal(size=(2, 6, 8, 3)).astype(np.float32)


def test_fully_connected_flattens(image):
    output, store = build(lambda x: FullyConnected("f", x, 5), image)
    expected = image.reshape(2, -1) @ store["f/W"].numpy() + store["f/b"].numpy()
    np.testing.assert_allclose(output, expected, atol=1e-4)


def test_embedding_refuses_numbers_that_are_not_whole():
    with pytest.raises(TypeError, match="expected integers as indices, received float32"):
        build(lambda x: Embedding("e", x, 5, 2), SEQUENCE)
