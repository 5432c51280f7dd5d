import numpy as np
import pytest

from tests.models.building import build
from towerpack._tensorflow import tf
from towerpack.models import (
    Conv2D,
)


@pytest.fixture
def image():
    return np.random.default_rng(0).normal(size=(2, 6, 8, 3)).astype(np.float32)


def test_conv2d_agrees_with_keras(image):
    output, store = build(lambda x: Conv2D("c", x, 4, 3, strides=2, activation=tf.nn.relu), image)
    layer = tf.keras.layers.Conv2D(4, 3, 2, "same", activation="relu")
    layer.build(image.shape)
    layer.set_weights([store["c/W"].numpy(), store["c/b"].numpy()])
    np.testing.assert_allclose(output, layer(image), atol=1e-5)


def test_grouped_conv2d_agrees_with_its_parts(image):
    image = np.concatenate([image, image], axis=3)
    output, store = build(lambda x: Conv2D("c", x, 4, 3, split=2, use_bias=False), image)
    weights = store["c/W"].numpy()
    assert weights.shape == (3, 3, 3, 4)
    parts = [
        tf.nn.conv2d(image[..., 3 * i : 3 * i + 3], weights[..., 2 * i : 2 * i + 2], 1, "SAME")
        for i in range(2)
    ]
    np.testing.assert_allclose(output, np.concatenate(parts, 3), atol=1e-5)
