import os

import pytest

from towerpack.dataflow import (
    BatchData,
    DataFromGenerator,
    DataFromList,
    MapData,
    MultiProcessMapData,
    MultiProcessRunner,
    kept_workers,
)


def with_pid(datapoint):
    return [datapoint[0], os.getpid()]


def numbers(count=40):
    return DataFromList([[i] for i in range(count)], shuffle=True)


def stream():
    return DataFromGenerator(lambda: ([i] for i in range(40)))


FLOWS = {
    "runner": lambda: MultiProcessRunner(MapData(numbers(), with_pid), 10, 2),
    "map": lambda: MultiProcessMapData(numbers(), 2, with_pid),
    "map over a stream": lambda: MultiProcessMapData(stream(), 2, with_pid),
    "batches": lambda: BatchData(MultiProcessRunner(MapData(numbers(), with_pid), 10, 2), 4),
}


def passes(flow, count=3):
    return [[[int(x) for x in dp] for dp in flow.iterate(epoch)] for epoch in range(count)]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("kind", [kind for kind in FLOWS if kind != "batches"])
def test_the_same_workers_make_every_pass_and_are_gone_afterwards(kind):
    flow = FLOWS[kind]()
    apart = passes(flow)
    with kept_workers(flow):
        together = passes(flow)
        pids = {dp[1] for one_pass in together for dp in one_pass}
        assert len(pids) <= 2
        assert any(map(alive, pids))
    assert not any(map(alive, pids))
    assert [[dp[0] for dp in p] for p in together] == [[dp[0] for dp in p] for p in apart]
    assert len({dp[1] for one_pass in apart for dp in one_pass}) > 2


def test_stages_below_others_are_kept_too():
    flow = FLOWS["batches"]()
    with kept_workers(flow):
        pids = {int(pid) for epoch in range(3) for batch in flow.iterate(epoch) for pid in batch[1]}
    assert len(pids) <= 2
    assert not any(map(alive, pids))


def test_a_pass_that_is_closed_midway_keeps_nothing():
    flow = FLOWS["runner"]()
    with kept_workers(flow):
        with flow.iterate(0) as datapoints:
            _, first = next(datapoints)
        assert not alive(int(first))
        assert len(list(flow.iterate(1))) == 40


def test_an_error_ends_the_workers():
    def fail(datapoint):
        if datapoint[0] == 7:
            raise ZeroDivisionError("seven")
        return with_pid(datapoint)

    flow = MultiProcessRunner(MapData(numbers(), fail), 10, 2)
    pids = set()
    with kept_workers(flow):
        with pytest.raises(ZeroDivisionError, match="seven"):
            for datapoint in flow.iterate(0):
                pids.add(int(datapoint[1]))
        assert not any(map(alive, pids))
