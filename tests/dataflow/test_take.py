import pytest

from tests.dataflow.examples import counted, numbers
from towerpack.dataflow import (
    MapData,
    ShardData,
    TakeData,
)

SOURCES = pytest.mark.parametrize("source", [numbers, counted], ids=["indexed", "iterated"])


@SOURCES
def test_take_and_shard(source):
    assert list(TakeData(source(5), 3)) == [0, 1, 2]
    assert list(TakeData(source(5), 9)) == list(range(5))
    shards = [list(ShardData(source(8), 3, shard)) for shard in range(3)]
    assert shards == [[0, 3, 6], [1, 4, 7], [2, 5]]
    with pytest.raises(ValueError, match="expected 0 <= shard < num_shards, received shard 3 of 3"):
        ShardData(source(8), 3, 3)


def test_take_does_not_read_on():
    read = []
    list(TakeData(MapData(counted(9), lambda x: read.append(x) or [x]), 2))
    assert read == [0, 1]
