import numpy as np
import pytest

from tests.predict.test_predictor import config, weights
from tests.tiny_model import tiny_arrays
from towerpack.predict import DataParallelOfflinePredictor, MultiTowerOfflinePredictor
from towerpack.predict.multi_tower import device_of


def expected(x):
    return x @ weights()["fc/W"] + weights()["fc/b"]


def test_a_predictor_for_each_tower_over_one_set_of_variables():
    x, _ = tiny_arrays()
    multi = MultiTowerOfflinePredictor(config(), [0, -1])
    assert len(multi.get_predictors()) == 2 and multi.get_predictor(2) is multi.get_predictor(0)
    assert set(multi.store.variables) == {"fc/W", "fc/b"}
    for predict in [multi, *multi.get_predictors()]:
        np.testing.assert_allclose(predict(x)[0], expected(x), atol=1e-5)


def test_data_parallel_takes_and_gives_tower_by_tower():
    x, _ = tiny_arrays()
    predict = DataParallelOfflinePredictor(config(), 2)
    first, second = predict(x[:5], x[5:])
    np.testing.assert_allclose(first, expected(x[:5]), atol=1e-5)
    np.testing.assert_allclose(second, expected(x[5:]), atol=1e-5)
    with pytest.raises(ValueError, match=r"expected 2 inputs \['x', 'x'\], received 1"):
        predict(x)


def test_devices_of_towers():
    assert device_of(-1) == "/cpu:0" and device_of(0) == "/cpu:0"
    with pytest.raises(ValueError, match="received -2"):
        device_of(-2)
    with pytest.raises(ValueError, match="at least one tower"):
        MultiTowerOfflinePredictor(config(), [])
