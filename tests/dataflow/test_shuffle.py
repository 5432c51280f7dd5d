from collections import Counter

import pytest

from tests.dataflow.examples import Random, counted, in_order, numbers
from towerpack.dataflow import (
    DataFromList,
    LocallyShuffleData,
    MapData,
    ShuffleData,
)

SOURCES = pytest.mark.parametrize("source", [numbers, counted], ids=["indexed", "iterated"])


@SOURCES
@pytest.mark.parametrize("reuse", [1, 3])
def test_locally_shuffled_is_exact_and_local(source, reuse):
    flow = LocallyShuffleData(source(60), 10, num_reuse=reuse)
    for epoch in range(2):
        order = list(flow.iterate(epoch))
        assert Counter(order) == Counter(list(range(60)) * reuse)
        first = {x: order.index(x) for x in range(60)}
        # It cannot leave before it has entered, which a full buffer delays.
        assert all(place >= (x - 9) * 1 for x, place in first.items())
    assert order[:60] != list(range(60))


def test_locally_shuffled_gives_the_same_over_either_kind_of_input():
    for arguments in ((10,), (10, 1, 10), (3, 1, 9), (4, 2), (7, 3, 2), (100,), (1,), (8, 1, 1)):
        for size in (0, 1, 9, 10, 11, 30):
            streams = [
                list(LocallyShuffleData(source(size), *arguments, seed=5).iterate(2))
                for source in (numbers, counted)
            ]
            assert streams[0] == streams[1]


def test_a_local_shuffle_is_restored_without_reading_from_the_beginning():
    read = []

    class Reader(Random):
        def iterator(self, epoch):
            return MapData(numbers(2000), lambda x: read.append(x) or [x, x]).open(epoch)

    flow = LocallyShuffleData(Reader(2000), 50)
    iterator = flow.iterate()
    for _ in range(1500):
        next(iterator)
    state = iterator.state()
    expected = list(iterator)
    read.clear()
    iterator.restore(state)
    assert list(iterator) == expected
    assert len(read) < 800


def test_shuffle_is_of_the_whole_flow():
    flow = ShuffleData(in_order(50))
    orders = [[dp[0] for dp in flow.iterate(epoch)] for epoch in range(3)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    with pytest.raises(
        TypeError, match="ShuffleData needs an input with random access, but Random"
    ):
        ShuffleData(Random())


def test_seeds_tell_flows_apart():
    streams = [list(DataFromList(list(range(9)), shuffle=True, seed=seed)) for seed in (0, 0, 1)]
    assert streams[0] == streams[1] != streams[2]
