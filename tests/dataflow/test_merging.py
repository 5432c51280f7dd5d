import numpy as np
import pytest

from tests.dataflow.examples import Random, counted, numbers
from towerpack.dataflow import (
    BatchData,
    CacheData,
    ConcatData,
    DataFromArrays,
    FakeData,
    JoinData,
    LocallyShuffleData,
    MapData,
    MultiProcessRunner,
    RandomChooseData,
    RandomMixData,
    RepeatedData,
    ShuffleData,
    TakeData,
)

SOURCES = pytest.mark.parametrize("source", [numbers, counted], ids=["indexed", "iterated"])


@SOURCES
def test_concat_and_join(source):
    assert list(ConcatData([source(2), source(3)])) == [0, 1, 0, 1, 2]
    pairs = [MapData(source(n), lambda x: [x]) for n in (2, 3)]
    assert list(JoinData(pairs)) == [[0, 0], [1, 1]]


def test_join_of_dicts():
    flow = JoinData([[{"a": 1}], [{"b": 2}]])
    assert list(flow) == [{"a": 1, "b": 2}]
    with pytest.raises(ValueError, match="two flows have the key 'a'; rename one in a MapData"):
        list(JoinData([[{"a": 1}], [{"a": 2}]]))
    with pytest.raises(TypeError, match="all dicts, or all lists or tuples, received dict, list"):
        list(JoinData([[{"a": 1}], [[2]]]))


def test_joined_and_concatenated_arrays_are_gathered_as_a_whole():
    x, y = np.arange(6.0), np.arange(6)
    batch = next(iter(BatchData(JoinData([DataFromArrays(x), DataFromArrays(y)]), 4)))
    assert [component.dtype for component in batch] == [np.float64, np.int64]
    across = list(BatchData(ConcatData([DataFromArrays(x), DataFromArrays(x + 10)]), 4))
    assert [batch[0].tolist() for batch in across] == [
        [0, 1, 2, 3],
        [4, 5, 10, 11],
        [12, 13, 14, 15],
    ]


IMAGES, LABELS = np.arange(12.0), np.arange(12)


def shuffled(array=IMAGES):
    return DataFromArrays(array, shuffle=True)


@pytest.mark.parametrize(
    "flows",
    [
        lambda: [shuffled(), shuffled(LABELS)],
        lambda: [shuffled(), DataFromArrays(LABELS)],
        lambda: [DataFromArrays(IMAGES), MapData(shuffled(LABELS), list)],
        lambda: [BatchData(shuffled(), 2), BatchData(ShuffleData(DataFromArrays(LABELS)), 2)],
        lambda: [LocallyShuffleData(counted(12), 4), shuffled(LABELS)],
        lambda: [CacheData(DataFromArrays(IMAGES), shuffle=True), shuffled(LABELS)],
        lambda: [MultiProcessRunner(shuffled(), 2, 1), shuffled(LABELS)],
        lambda: [source := shuffled(), MapData(source, list)],
    ],
)
def test_B8_flows_that_shuffle_independently_are_not_joined(flows):
    with pytest.raises(
        ValueError,
        match=r"pair datapoints at random: .*DataFromArrays\(images, labels, shuffle=True\)",
    ):
        JoinData(flows())
    assert JoinData(flows(), paired=False).flows


def test_B8_both_ways_that_the_error_names_keep_the_pairs():
    together = ShuffleData(JoinData([DataFromArrays(IMAGES), DataFromArrays(LABELS)]))
    for flow in (together, DataFromArrays(IMAGES, LABELS, shuffle=True)):
        first, second = (list(flow.iterate(epoch)) for epoch in (0, 1))
        assert all(image == label for image, label in first)
        assert [label for _, label in first] != [label for _, label in second]


def test_noise_and_generators_may_be_joined_with_shuffled_data():
    for noise in (FakeData([[2]], size=12), MapData(counted(12), lambda x: [x])):
        assert len(list(JoinData([shuffled(), noise]))) == 12
    assert len(list(JoinData([shuffled(), DataFromArrays(np.zeros(30))]))) == 12


def test_a_list_of_flows_is_expected():
    with pytest.raises(TypeError, match="expected a list of flows, received one DataFromList"):
        ConcatData(numbers(3))
    with pytest.raises(ValueError, match="at least one flow"):
        JoinData([])


@SOURCES
def test_random_mix_is_exact(source):
    if source is counted:
        with pytest.raises(TypeError, match="has no len"):
            RandomMixData([counted(3), counted(4)])
        return
    flow = RandomMixData([numbers(3), MapData(Random(4), lambda dp: dp[0] + 10)])
    for epoch in range(3):
        mixed = list(flow.iterate(epoch))
        assert [x for x in mixed if x < 10] == [0, 1, 2]
        assert [x for x in mixed if x >= 10] == [10, 11, 12, 13]


def test_random_choose_follows_the_probabilities():
    flow = RandomChooseData([(RepeatedData([0], -1), 0.2), (RepeatedData([1], -1), 0.8)])
    drawn = list(TakeData(flow, 4000))
    assert 0.77 < sum(drawn) / 4000 < 0.83
    assert len(set(RandomChooseData([[0] * 9, [1] * 9]))) <= 2


def test_ten_tenths_are_one():
    assert RandomChooseData([([1], 0.1)] * 10).probs == [0.1] * 10
    with pytest.raises(ValueError, match=r"add up to 1, received \[0.5, 0.6\] with sum 1.1"):
        RandomChooseData([([1], 0.5), ([2], 0.6)])
    with pytest.raises(ValueError, match="received both"):
        RandomChooseData([[1], ([2], 0.5)])


def test_random_choose_ends_with_the_one_that_is_drawn():
    flow = RandomChooseData([numbers(3), numbers(100)], seed=1)
    assert 3 <= len(list(flow)) < 100
