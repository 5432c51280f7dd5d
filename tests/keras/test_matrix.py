"""`towerpack.keras.fit` beside `model.fit`: models by model, then callbacks, then both."""

import pytest

from tests.keras.beside_fit import CASES, assert_same, by_keras, by_us


@pytest.mark.parametrize("name", CASES)
def test_a_model_trains_as_by_fit(name):
    assert_same(by_us(CASES[name]), by_keras(CASES[name]))
