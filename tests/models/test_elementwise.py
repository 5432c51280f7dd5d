import numpy as np
import pytest

from tests.models.building import build
from towerpack.models import (
    Dropout,
    Maxout,
    PReLU,
    StochasticDepth,
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


def test_dropout_position_is_keep_and_rate_is_drop():
    ones = np.ones([100, 100], np.float32)
    kept, _ = build(lambda x: Dropout("d", x, 0.9), ones)
    assert 0.85 < (kept != 0).mean() < 0.95
    np.testing.assert_allclose(kept[kept != 0], 1 / 0.9, rtol=1e-6)
    dropped, _ = build(lambda x: Dropout(x, rate=0.9), ones)
    assert 0.05 < (dropped != 0).mean() < 0.15
    same, _ = build(lambda x: Dropout("d", x, 0.5), ones, is_training=False)
    np.testing.assert_array_equal(same, ones)


def test_stochastic_depth_drops_whole_datapoints():
    ones = np.ones([400, 2, 3], np.float32)
    output, _ = build(lambda x: StochasticDepth(x, rate=0.25), ones)
    assert set(np.round(np.unique(output), 4)) == {np.float32(0), np.float32(1.3333)}
    assert (output.reshape(400, -1).std(1) == 0).all()
    assert 0.65 < (output[:, 0, 0] > 0).mean() < 0.85


def test_dropout_messages():
    with pytest.raises(TypeError, match="either keep_prob"):
        build(lambda x: Dropout("d", x, 0.5, rate=0.5), IMAGE)
    with pytest.raises(ValueError, match=r"expected a rate in \[0, 1\), received 1"):
        build(lambda x: Dropout(x, rate=1), IMAGE)
