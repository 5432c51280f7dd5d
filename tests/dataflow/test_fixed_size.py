import pytest

from tests.dataflow.examples import counted, numbers
from towerpack.dataflow import (
    BatchData,
    DataFromList,
    FilterData,
    FixedSizeData,
    MapData,
)

SOURCES = pytest.mark.parametrize("source", [numbers, counted], ids=["indexed", "iterated"])


@SOURCES
def test_fixed_size_as_its_users_know_it(source):
    flow = FixedSizeData(source(5), 3)
    assert [list(flow) for _ in range(4)] == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1]]
    again = FixedSizeData(source(5), 3, keep_state=False)
    assert [list(again) for _ in range(2)] == [[0, 1, 2], [0, 1, 2]]
    longer = FixedSizeData(source(5), 6, keep_state=False)
    assert [list(longer) for _ in range(2)] == [[0, 1, 2, 3, 4, 0]] * 2
    assert len(longer) == 6


@SOURCES
def test_fixed_size_starts_a_later_epoch_in_the_right_place(source):
    assert list(FixedSizeData(source(5), 3).iterate(epoch=3)) == [4, 0, 1]


def test_fixed_size_over_a_shuffled_source_gives_whole_epochs():
    flow = FixedSizeData(DataFromList(list(range(6)), shuffle=True), 4)
    seen = [x for _ in range(3) for x in flow]
    assert sorted(seen[:6]) == sorted(seen[6:]) == list(range(6))
    assert seen[:6] != seen[6:]


def test_fixed_size_of_nothing_is_an_error_and_not_a_hang():
    with pytest.raises(ValueError, match="expected datapoints, but DataFromList is empty"):
        FixedSizeData(numbers(0), 3)
    with pytest.raises(ValueError, match="gave none"):
        list(FixedSizeData(counted(0), 3))


@SOURCES
@pytest.mark.parametrize(
    "drop", [lambda ds: FilterData(ds, bool), lambda ds: MapData(ds, lambda x: x or None)]
)
def test_fixed_size_over_batches_of_what_is_left(source, drop):
    def flow():
        return FixedSizeData(BatchData(drop(source(6)), 2, remainder=True), 2)

    together = flow()
    passes = [[batch.tolist() for batch in together.iterate(epoch)] for epoch in range(3)]
    assert passes == [[[1, 2], [3, 4]], [[5], [1, 2]], [[3, 4], [5]]]
    for epoch, expected in enumerate(passes):
        assert [batch.tolist() for batch in flow().iterate(epoch)] == expected


def test_fixed_size_over_fewer_batches_than_there_might_be():
    left = FilterData(numbers(6), lambda x: x > 2)
    flow = FixedSizeData(BatchData(left, 2, remainder=True), 3)
    assert [batch.tolist() for batch in flow.iterate(1)] == [[5], [3, 4], [5]]
