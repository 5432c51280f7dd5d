from collections import Counter

import pytest

from tests.dataflow.examples import listed, numbers
from towerpack.dataflow import (
    MapData,
    ShuffleData,
    WeightedChooseData,
)


def test_weights_are_followed():
    flow = WeightedChooseData(numbers(3), [0, 1, 3], size=4000)
    drawn = Counter(flow)
    assert drawn[0] == 0
    assert 0.72 < drawn[2] / 4000 < 0.78
    assert len(WeightedChooseData(numbers(3), [1, 1, 1])) == 3


@pytest.mark.parametrize("weights", [[1], [1, -1, 1], [0, 0, 0], [1, float("nan"), 1]])
def test_weights_are_checked(weights):
    with pytest.raises(ValueError, match="weights"):
        WeightedChooseData(numbers(3), weights)


def test_weights_need_an_order_that_stays():
    for flow in (listed(), MapData(listed(), list), ShuffleData(numbers(7))):
        with pytest.raises(ValueError, match="WeightedChooseData knows the weights by index"):
            WeightedChooseData(flow, [1] * 7)
