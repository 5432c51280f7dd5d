from tests.dataflow.examples import numbers
from towerpack.dataflow import (
    DataFromList,
    MapData,
    ShardData,
)


def test_shards_of_a_shuffled_source_are_disjoint_in_every_epoch():
    source = DataFromList(list(range(20)), shuffle=True)
    for epoch in range(3):
        shards = [list(ShardData(source, 3, i).iterate(epoch)) for i in range(3)]
        assert sorted(x for shard in shards for x in shard) == list(range(20))


def test_a_shard_does_not_read_the_others():
    read = []
    flow = ShardData(MapData(numbers(9), lambda x: read.append(x) or [x]), 3, 2)
    list(flow)
    assert read == [2, 5, 8]
