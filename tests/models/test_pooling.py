import numpy as np
import pytest

from tests.models.building import build
from towerpack.models import (
    AvgPooling,
    FixedUnPooling,
    GlobalAvgPooling,
    MaxPooling,
    PixelShuffle,
)

IMAGE = np.random.default_rng(0).normal(size=(2, 4, 6, 4)).astype(np.float32)


@pytest.fixture
def image():
    return np.random.default_rng(0).normal(size=(2, 6, 8, 3)).astype(np.float32)


def test_pooling(image):
    windows = image.reshape(2, 3, 2, 4, 2, 3)
    np.testing.assert_allclose(
        build(lambda x: MaxPooling("p", x, 2), image)[0], windows.max((2, 4))
    )
    np.testing.assert_allclose(
        build(lambda x: AvgPooling("p", x, 2), image)[0], windows.mean((2, 4)), atol=1e-6
    )
    np.testing.assert_allclose(
        build(lambda x: GlobalAvgPooling("p", x), image)[0], image.mean((1, 2)), atol=1e-6
    )


def test_fixed_unpooling_is_a_kronecker_product():
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    output, _ = build(lambda x: FixedUnPooling("u", x, (2, 3), matrix), IMAGE)
    np.testing.assert_allclose(output[1, :, :, 2], np.kron(IMAGE[1, :, :, 2], matrix))
    default, _ = build(lambda x: FixedUnPooling("u", x, 2), IMAGE)
    np.testing.assert_array_equal(default[:, ::2, ::2], IMAGE)
    assert np.count_nonzero(default) == IMAGE.size
    with pytest.raises(ValueError, match=r"unpool_mat of shape \[2, 2\], received \(2, 3\)"):
        build(lambda x: FixedUnPooling("u", x, 2, matrix), IMAGE)


def test_pixel_shuffle_order():
    output, _ = build(lambda x: PixelShuffle("p", x, 2), IMAGE)
    assert output.shape == (2, 8, 12, 1)
    np.testing.assert_array_equal(output[0, :2, :2, 0].ravel(), IMAGE[0, 0, 0])
    with pytest.raises(ValueError, match="multiples of 9, received 4"):
        build(lambda x: PixelShuffle("p", x, 3), IMAGE)
