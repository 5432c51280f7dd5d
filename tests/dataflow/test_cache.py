import pytest

from tests.dataflow.examples import counted, numbers
from towerpack.dataflow import (
    CacheData,
    MapData,
)


def test_cache_reads_each_datapoint_once():
    read = []
    for source in (numbers(4), counted(4)):
        read.clear()
        flow = CacheData(MapData(source, lambda x: read.append(x) or [x]))
        assert [list(flow) for _ in range(3)] == [[[0], [1], [2], [3]]] * 3
        assert read == [0, 1, 2, 3]


def test_cache_an_abandoned_first_pass_is_not_taken_for_complete():
    for source in (numbers(4), counted(4)):
        flow = CacheData(source)
        iterator = iter(flow)
        next(iterator)
        iterator.close()
        assert list(flow) == [0, 1, 2, 3]


def test_cache_shuffles_anew_each_epoch():
    for source in (numbers(20), counted(20)):
        flow = CacheData(source, shuffle=True)
        orders = [list(flow) for _ in range(3)]
        assert all(sorted(order) == list(range(20)) for order in orders)
        assert len(set(map(tuple, orders))) == 3


def test_cache_an_error_while_reading_is_not_cached():
    attempts = []

    def fails_once(x):
        if x == 2 and not attempts:
            attempts.append(x)
            raise OSError("try again")
        return [x]

    for source in (numbers(4), counted(4)):
        attempts.clear()
        flow = CacheData(MapData(source, fails_once))
        with pytest.raises(OSError, match="try again"):
            list(flow)
        assert list(flow) == [[0], [1], [2], [3]]
