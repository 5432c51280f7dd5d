from collections import Counter

import numpy as np
import pytest

from tests.dataflow.examples import iterated, listed, numbers
from towerpack.dataflow import (
    BalancedData,
    BatchData,
    DataFromArrays,
    MapData,
)

LABELS = [0] * 10 + [1] * 3 + [2] * 1


def test_balance_over():
    flow = BalancedData(numbers(14), LABELS)
    assert len(flow) == 30
    for epoch in range(3):
        drawn = list(flow.iterate(epoch))
        assert Counter(LABELS[x] for x in drawn) == {0: 10, 1: 10, 2: 10}
        times = Counter(drawn)
        assert set(times) == set(range(14))
        assert {times[x] for x in (10, 11, 12)} == {3, 4}
    assert list(flow.iterate(0)) != list(flow.iterate(1))


def test_balance_under():
    flow = BalancedData(numbers(14), np.array([0] * 10 + [1] * 4), mode="under")
    assert len(flow) == 8
    seen = set()
    for epoch in range(20):
        drawn = list(flow.iterate(epoch))
        assert len(set(drawn)) == 8
        assert sum(x >= 10 for x in drawn) == 4
        seen |= set(drawn)
    assert seen == set(range(14)), "other datapoints of a large class in each epoch"


def test_balance_labels_from_datapoints():
    points = [["a", np.int64(1)], ["b", np.int64(2)], ["c", np.int64(2)]]
    for label in (1, lambda dp: dp[1], [1, 2, 2]):
        flow = BalancedData(points, label)
        assert Counter(dp[1] for dp in flow) == {1: 2, 2: 2}
    dicts = [{"y": "cat"}, {"y": "dog"}, {"y": "dog"}]
    assert Counter(dp["y"] for dp in BalancedData(dicts, "y")) == {"cat": 2, "dog": 2}


def test_balance_batches_are_gathered_as_a_whole():
    flow = BalancedData(DataFromArrays(np.arange(14)), LABELS)
    assert next(iter(BatchData(flow, 30)))[0].shape == (30,)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"label": [1]}, "expected 14 labels, one for each datapoint, received 1"),
        ({"label": lambda x: [x]}, "expected a label that is a number, a string or a tuple"),
        ({"label": lambda x: 0, "mode": "sideways"}, "expected a mode of over or under"),
    ],
)
def test_balance_arguments(arguments, words):
    with pytest.raises((ValueError, TypeError), match=words):
        BalancedData(numbers(14), **arguments)


def test_balance_inputs_that_cannot_be_balanced():
    with pytest.raises(ValueError, match="pass it shuffle=False"):
        BalancedData(listed(), 0)
    with pytest.raises(TypeError, match="needs an input with random access"):
        BalancedData(iterated(), 0)
    with pytest.raises(ValueError, match="expected datapoints to balance"):
        BalancedData(numbers(0), 0)
    with pytest.raises(ValueError, match="cannot know the label of datapoint 0"):
        BalancedData(MapData(numbers(3), lambda x: x or None), lambda x: 0)
