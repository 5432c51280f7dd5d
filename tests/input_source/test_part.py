"""What one rank reads of a flow, and where that is in the stream of all ranks."""

import numpy as np
import pytest

from towerpack.dataflow import BatchData, DataFromArrays, DataFromGenerator, RemoteDataZMQ
from towerpack.dataflow.parallel.share import Share
from towerpack.input_source.part import OwnPart, goes_back
from towerpack.input_source.position import START

ROWS = 10


def by_index():
    return DataFromArrays(np.arange(ROWS))


def in_order():
    return DataFromGenerator(lambda: ([i] for i in range(ROWS)))


def read(part, count):
    stream = part.stream()
    try:
        return [int(next(stream)[0]) for _ in range(count)]
    finally:
        stream.close()


@pytest.mark.parametrize("make", [by_index, in_order])
@pytest.mark.parametrize("unit", [1, 2, 3])
def test_the_parts_of_all_ranks_are_the_stream(make, unit):
    parts = [OwnPart(make(), START, Share(rank, 3, unit), endless=True) for rank in range(3)]
    found = {
        part.place(number): datapoint
        for part in parts
        for number, datapoint in enumerate(read(part, 4 * unit))
    }
    assert [found[place] for place in range(12 * unit)] == [n % ROWS for n in range(12 * unit)]


@pytest.mark.parametrize("make", [by_index, in_order])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_part_begins_where_another_number_of_ranks_has_ended(make, ranks):
    before = OwnPart(make(), START, Share(0, 3), endless=True)
    used = before.used(5)
    assert used == 15
    stream = before.stream()
    for _ in range(5):
        next(stream)
    mark = before.positions.before(used)
    begin = mark._replace(number=0, skip=mark.skip + used - mark.number)
    stream.close()
    parts = [OwnPart(make(), begin, Share(rank, ranks), endless=True) for rank in range(ranks)]
    found = {p.place(n): d for p in parts for n, d in enumerate(read(p, 6))}
    assert [found[place] for place in range(6 * ranks)] == [
        (15 + n) % ROWS for n in range(6 * ranks)
    ]


def test_one_process_reads_everything():
    part = OwnPart(by_index(), START, None, endless=True)
    assert read(part, 12) == [*range(10), 0, 1]
    assert part.used(7) == part.place(7) == 7


def test_a_part_that_ends_leaves_out_what_belongs_to_others():
    part = OwnPart(by_index(), START, Share(1, 4), endless=False)
    stream = part.stream()
    assert [int(datapoint[0]) for datapoint in stream] == [1, 5, 9]


def test_a_rank_whose_part_is_empty_ends_at_once():
    part = OwnPart(BatchData(by_index(), 5), START, Share(3, 4), endless=False)
    assert list(part.stream()) == []


def test_what_is_received_from_afar_belongs_to_the_rank_that_received_it():
    flow = RemoteDataZMQ("ipc:///tmp/never-opened")
    part = OwnPart(flow, START, Share(1, 2), endless=True)
    assert not goes_back(flow)
    assert part.flow is flow
    assert part.place(3) == 3  # its own number: others receive something else
    assert part.used(3) == 3
