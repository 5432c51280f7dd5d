import pytest

from tests.dataflow.examples import counted, numbers
from towerpack.dataflow import (
    DataFromList,
    MapData,
    RepeatedData,
    RepeatedDataPoint,
)

SOURCES = pytest.mark.parametrize("source", [numbers, counted], ids=["indexed", "iterated"])


@SOURCES
def test_repeated(source):
    assert list(RepeatedData(source(2), 3)) == [0, 1] * 3
    endless = iter(RepeatedData(source(2), -1))
    assert [next(endless) for _ in range(5)] == [0, 1, 0, 1, 0]
    endless.close()
    assert list(RepeatedDataPoint(source(2), 3)) == [0, 0, 0, 1, 1, 1]


def test_repeated_rounds_are_epochs_of_their_own():
    source = DataFromList(list(range(20)), shuffle=True)
    rounds = list(RepeatedData(source, 2))
    assert rounds[:20] == list(source.iterate(0))
    assert rounds[20:] == list(source.iterate(1))
    later = list(RepeatedData(source, 2).iterate(3))
    assert later == [*source.iterate(6), *source.iterate(7)]
    endless = RepeatedData(source, -1).iterate(1)
    assert [next(endless) for _ in range(20)] == list(source.iterate(1))


def test_repeating_nothing_for_ever_is_an_error_and_not_a_hang():
    for source in (numbers(0), counted(0)):
        with pytest.raises(ValueError, match="would never end"):
            next(iter(RepeatedData(source, -1)))
    assert list(RepeatedData(numbers(0), 3)) == []


def test_repeated_needs_a_number():
    with pytest.raises(ValueError, match="or -1 for an endless flow, received 0"):
        RepeatedData([1], 0)
    with pytest.raises(TypeError, match="endless"):
        len(RepeatedData([1], -1))


def test_a_repeated_datapoint_is_made_once():
    made = []

    def make(dp):
        made.append(dp)
        return [dp]

    for source in (numbers(3), counted(3)):
        made.clear()
        points = list(RepeatedDataPoint(MapData(source, make), 4))
        assert made == [0, 1, 2]
        assert points[0] is points[3]
