import numpy as np
import pytest

from tests.models.building import build
from towerpack.models import (
    Maxout,
    PReLU,
)

IMAGE = np.random.default_rng(0).normal(size=(2, 4, 6, 4)).astype(np.float32)


def test_maxout_takes_neighbours():
    output, _ = build(lambda x: Maxout(x, 2), IMAGE)
    np.testing.assert_array_equal(output, IMAGE.reshape(2, 4, 6, 2, 2).max(-1))
    with pytest.raises(ValueError, match="num_unit=3 must divide the channels, which are 4"):
        build(lambda x: Maxout("m", x, 3), IMAGE)


def test_prelu_by_hand():
    output, store = build(lambda x: PReLU("p", x, 0.5), IMAGE)
    np.testing.assert_allclose(output, np.where(IMAGE > 0, IMAGE, 0.5 * IMAGE))
    assert list(store.variables) == ["p/alpha"]
