import os
import signal
import threading
import time

import numpy as np
import pytest

from towerpack.dataflow import (
    BatchData,
    DataFromGenerator,
    DataFromList,
    FixedSizeData,
    MapData,
    MultiProcessMapData,
    MultiProcessRunner,
    RepeatedData,
    TakeData,
    kept_workers,
)
from towerpack.dataflow.base import DataFlow


def with_pid(datapoint):
    return [datapoint[0], os.getpid()]


def numbers(count=40):
    return DataFromList([[i] for i in range(count)], shuffle=True)


def stream():
    return DataFromGenerator(lambda: ([i] for i in range(40)))


class Rooted(DataFlow):
    """Cannot go to another process, so that its datapoints are read here."""

    def __init__(self):
        self.lock = threading.Lock()

    def __len__(self):
        return 40

    def rows(self, indices, epoch):
        return [[(7 * int(index) + epoch.number) % 40] for index in indices]


FLOWS = {
    "runner": lambda: MultiProcessRunner(MapData(numbers(), with_pid), 10, 2),
    "map": lambda: MultiProcessMapData(numbers(), 2, with_pid),
    "map of what is read here": lambda: MultiProcessMapData(Rooted(), 2, with_pid),
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


@pytest.mark.parametrize("kind", FLOWS)
def test_a_pass_that_is_closed_midway_keeps_its_workers(kind):
    flow, pids = FLOWS[kind](), set()
    with kept_workers(flow):
        for epoch in range(3):
            with flow.iterate(0) as datapoints:
                pids.update(np.ravel(next(datapoints)[1]).tolist())
            last = list(flow.iterate(epoch))
            assert numbers_of(last) == numbers_of(FLOWS[kind]().iterate(epoch))
            pids.update(np.ravel([dp[1] for dp in last]).tolist())
        assert len(pids) <= 2
    assert not any(map(alive, pids))


@pytest.mark.parametrize("kind", [kind for kind in FLOWS if kind != "batches"])
@pytest.mark.parametrize(
    "stage",
    [
        lambda flow: RepeatedData(flow, 4),
        lambda flow: FixedSizeData(flow, 130),
        lambda flow: FixedSizeData(flow, 130, keep_state=False),
        lambda flow: TakeData(RepeatedData(flow, -1), 130),
    ],
)
def test_rounds_of_a_repeated_flow_have_the_same_workers(kind, stage):
    flow = stage(FLOWS[kind]())
    found = [[int(x) for x in dp] for dp in flow]
    pids = {pid for _, pid in found}
    assert len(pids) <= 2
    assert not any(map(alive, pids))
    rounds = [dp[0] for epoch in range(4) for dp in FLOWS[kind]().ds.iterate(epoch)]
    assert [number for number, _ in found] == rounds[: len(found)]
    assert len(found) >= 130


def test_passes_of_a_fixed_size_have_the_same_workers_within_a_block():
    flow, pids = FixedSizeData(FLOWS["runner"](), 15), set()
    with kept_workers(flow):
        for epoch in range(6):
            datapoints = list(flow.iterate(epoch))
            pids |= {int(pid) for _, pid in datapoints}
            plain = FixedSizeData(MapData(numbers(), with_pid), 15)
            assert numbers_of(datapoints) == numbers_of(plain.iterate(epoch))
        assert len(pids) <= 2
        assert any(map(alive, pids))
    assert not any(map(alive, pids))


def test_a_repeated_flow_that_is_left_midway_leaves_no_workers():
    for leave in ("close", "del"):
        datapoints = RepeatedData(FLOWS["runner"](), 3).iterate()
        pids = {int(next(datapoints)[1]) for _ in range(50)}
        if leave == "close":
            datapoints.close()
        del datapoints
        assert not any(map(alive, pids))


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


def numbers_of(one_pass):
    """Without the processes that made them."""
    return [np.asarray(dp[0]).tolist() for dp in one_pass]


def test_at_the_end_of_a_pass_workers_go_on_with_the_next(tmp_path):
    def count(datapoint):
        with open(tmp_path / "made", "ab") as file:
            file.write(b".")
        return datapoint

    flow = MultiProcessRunner(MapData(numbers(), count), 10, 2)
    with kept_workers(flow):
        assert len(list(flow.iterate(0))) == 40
        deadline = time.monotonic() + 20
        while (tmp_path / "made").stat().st_size <= 40:
            assert time.monotonic() < deadline, "nobody asked for it, so it was not made"
            time.sleep(0.01)


@pytest.mark.parametrize("kind", FLOWS)
def test_whichever_pass_follows_is_the_right_one(kind):
    flow = FLOWS[kind]()
    order = [0, 1, 2, 0, 0, 5, 3, 4]
    apart = {epoch: numbers_of(flow.iterate(epoch)) for epoch in set(order)}
    with kept_workers(flow):
        for epoch in order:
            assert numbers_of(flow.iterate(epoch)) == apart[epoch]


@pytest.mark.parametrize("kind", FLOWS)
def test_a_position_within_the_next_pass(kind):
    flow = FLOWS[kind]()
    with flow.iterate(1) as datapoints:
        for _ in range(7):
            next(datapoints)
        state = datapoints.state()
        expected = numbers_of(datapoints)
    with kept_workers(flow):
        list(flow.iterate(0))
        with flow.iterate(1) as datapoints:
            datapoints.restore(state)
            assert numbers_of(datapoints) == expected
        assert numbers_of(flow.iterate(2)) == numbers_of(FLOWS[kind]().iterate(2))


def test_F1_workers_that_die_between_two_passes():
    flow = FLOWS["runner"]()
    apart = [numbers_of(flow.iterate(epoch)) for epoch in range(2)]
    with kept_workers(flow):
        first = list(flow.iterate(0))
        for pid in {pid for _, pid in first}:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        assert [numbers_of(first), numbers_of(flow.iterate(1))] == apart


class FailsLater(DataFlow):
    """Raises at the third datapoint of the second epoch."""

    def __len__(self):
        return 8

    def rows(self, indices, epoch):
        if epoch.number == 1 and 2 in indices:
            raise ZeroDivisionError("in the second epoch")
        return [[int(index)] for index in indices]


def test_an_error_of_the_next_pass_waits_for_its_turn():
    flow, found = MultiProcessRunner(FailsLater(), 10, 2), []
    with kept_workers(flow):
        assert len(list(flow.iterate(0))) == 8
        with pytest.raises(ZeroDivisionError, match="in the second epoch"):
            for (number,) in flow.iterate(1):
                found.append(int(number))
        assert found == [0, 1]
        assert len(list(flow.iterate(2))) == 8


def test_what_was_made_for_another_pass_is_given_back():
    flow = MultiProcessRunner(numbers(), 10, 2)
    with kept_workers(flow):
        for _ in range(30):
            list(flow.iterate(0))  # the workers go on with epoch 1 each time
        assert flow._kept._next_slot < 20


def test_workers_are_kept_where_the_last_batch_is_left_out():
    flow = BatchData(MultiProcessMapData(numbers(), 2, with_pid), 7)
    with kept_workers(flow):
        pids = {int(pid) for epoch in range(3) for batch in flow.iterate(epoch) for pid in batch[1]}
    assert len(pids) <= 2
    assert not any(map(alive, pids))
