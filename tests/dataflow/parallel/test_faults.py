"""What workers may do to us, and what must come of it: nothing."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

from tests.dataflow.parallel.scripts import alive, children, eventually
from towerpack import dataflow as df
from towerpack.dataflow import WorkerDied, WorkerError
from towerpack.dataflow.workers import pool
from towerpack.dataflow.workers.forkserver import server

SIZE = 40


def numbers(size=SIZE):
    return df.DataFromList([[i] for i in range(size)], shuffle=False)


def iterated(size=SIZE):
    return df.DataFromGenerator(lambda: ([i] for i in range(size)))


def workers(flow):
    return [worker.pid for worker in flow.parallel_statistics().workers]


def once(marker, index, action):
    """A function that does something terrible at one datapoint, the first time."""

    def function(dp):
        if dp[0] == index and not os.path.exists(marker):
            with open(marker, "w"):
                pass
            action()
        return [dp[0] * 10]

    return function


EXPECTED = [[i * 10] for i in range(SIZE)]
ENDS = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "os._exit": lambda: os._exit(3),
    "sys.exit": lambda: sys.exit(4),
}
WAYS = {
    "by index": lambda function: df.MultiProcessMapData(numbers(), 2, function),
    "from an input": lambda function: df.MultiProcessMapData(iterated(), 2, function),
    "runner": lambda function: df.MultiProcessRunner(df.MapData(numbers(), function), 8, 2),
    "stream": lambda function: df.MultiProcessRunner(df.MapData(iterated(), function), 8, 1),
}


@pytest.mark.parametrize("end", ENDS)
def test_F1_worker_that_dies_is_replaced_and_the_stream_is_the_same(tmp_path, end, caplog):
    flow = df.MultiProcessMapData(numbers(), 2, once(str(tmp_path / "done"), 17, ENDS[end]))
    assert list(flow) == EXPECTED
    assert (tmp_path / "done").exists()


@pytest.mark.parametrize("way", WAYS)
def test_F1_whatever_way_the_datapoints_are_made(tmp_path, way):
    flow = WAYS[way](once(str(tmp_path / "done"), 17, ENDS["SIGKILL"]))
    assert list(flow) == EXPECTED
    assert (tmp_path / "done").exists()


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_F1_worker_killed_from_outside(start_method):
    def slow(dp):
        time.sleep(0.02)  # so that there is something to lose
        return [dp[0] * 10]

    flow = df.MultiProcessMapData(numbers(), 2, slow, start_method=start_method)
    with iter(flow) as iterator:
        found = [next(iterator) for _ in range(5)]
        before = workers(flow)
        os.kill(before[1], signal.SIGKILL)
        eventually(lambda: not alive(before[1]))
        found += iterator
    assert found == EXPECTED


def test_F1_the_fork_server_killed_and_all_workers_with_it():
    """One misfortune, however many workers there were."""
    flow = df.MultiProcessMapData(numbers(), 4, lambda dp: [dp[0] * 10], buffer_size=2)
    for _ in range(2):
        with iter(flow) as iterator:
            found = [next(iterator)]
            os.kill(server().process.pid, signal.SIGKILL)  # the kernel takes its workers along
            found += iterator
        assert found == EXPECTED


@pytest.mark.parametrize("way", WAYS)
def test_F1_after_three_deaths_the_error_names_signal_worker_and_datapoint(way):
    def deadly(dp):
        if dp[0] == 23:
            os.kill(os.getpid(), signal.SIGSEGV)
        return [dp[0] * 10]

    flow = WAYS[way](deadly)
    found = []
    with pytest.raises(
        WorkerDied, match=r"worker \d \(pid \d+\) of .*SIGSEGV.*datapoint 23"
    ) as caught:
        for datapoint in flow:
            found.append(datapoint)
    assert found == EXPECTED[: len(found)]
    assert caught.value.status == -signal.SIGSEGV
    assert not set(workers(flow)) & children()


def test_F1_a_worker_that_dies_of_memory_says_so():
    flow = df.MultiProcessMapData(numbers(3), 1, lambda dp: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(WorkerDied, match="SIGKILL: probably out of memory"):
        list(flow)


def test_F1_a_program_that_user_code_left_running_hides_no_death(tmp_path):
    """It inherits the worker's channel, so that its end alone would not show."""

    def leave_a_program_behind():
        if os.fork() == 0:
            time.sleep(100)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    flow = df.MultiProcessMapData(
        numbers(), 2, once(str(tmp_path / "done"), 17, leave_a_program_behind)
    )
    before = children()
    assert list(flow) == EXPECTED
    for pid in children() - before:
        os.kill(pid, signal.SIGKILL)


class Strange(Exception):
    """An exception that pickle cannot bring back."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def test_F2_error_has_its_type_traceback_stage_and_datapoint():
    def fails_at_37(dp):
        if dp[0] == 37:
            raise KeyError("thirty-seven")
        return [dp[0] * 10]

    for way, make in WAYS.items():
        flow = make(fails_at_37)
        found = []
        with pytest.raises(KeyError, match="thirty-seven") as caught:
            for datapoint in flow:
                found.append(datapoint)
        notes = "\n".join(caught.value.__notes__)
        assert found == EXPECTED[:37], way
        assert "datapoint 37" in notes and "fails_at_37" in notes
        assert f"of {flow.label()}" in notes and "raise KeyError" in notes
        assert not set(workers(flow)) & children(), "workers were left behind"


def test_F2_an_exception_that_cannot_travel_is_told_in_words():
    def strange(dp):
        raise Strange(1, 2)

    with pytest.raises(WorkerError, match="Strange: 1 and 2"):
        list(df.MultiProcessMapData(numbers(), 2, strange))


def test_F2_an_exception_with_things_that_cannot_be_pickled():
    def fails(dp):
        raise ValueError("locked", threading.Lock())

    with pytest.raises(WorkerError, match="ValueError: .*locked"):
        list(df.MultiProcessMapData(numbers(), 2, fails))


def test_F2_a_StopIteration_does_not_end_the_pass():
    def stops(dp):
        return next(iter(()))

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(df.MultiProcessMapData(numbers(), 2, stops))


@pytest.mark.parametrize("way", WAYS)
def test_F2_skip_counts_and_goes_on(way):
    def odd_ones_fail(dp):
        if dp[0] % 2:
            raise ValueError(dp[0])
        return [dp[0] * 10]

    flow = WAYS[way](odd_ones_fail)
    flow.options = df.parallel.stage.WorkerOptions("forkserver", 60.0, "skip")
    assert list(flow) == EXPECTED[::2]
    assert flow._latest.skipped == SIZE // 2
    with pytest.raises(TypeError, match="len"):
        len(flow)


def test_F2_after_an_error_the_next_call_tries_again(tmp_path):
    obstacle = tmp_path / "obstacle"
    obstacle.touch()
    path = str(obstacle)

    def fails_for_now(dp):
        if dp[0] == 5 and os.path.exists(path):
            raise ValueError("not yet")
        return [dp[0] * 10]

    iterator = iter(df.MultiProcessMapData(numbers(), 2, fails_for_now))
    found = [next(iterator) for _ in range(5)]
    with pytest.raises(ValueError, match="not yet"):
        next(iterator)
    obstacle.unlink()
    found += iterator
    assert found == EXPECTED


def test_F2_an_object_that_cannot_go_to_a_worker_is_named():
    lock = threading.Lock()

    def locked(dp):
        with lock:
            return dp

    flow = df.MultiProcessRunner(df.BatchData(df.MapData(numbers(), locked), 2), 2, 2)
    with pytest.raises(
        TypeError, match=r"MultiProcessRunner.*\.func.*locked.*'lock'.*_thread.lock"
    ):
        list(flow)


def test_F2_a_result_that_cannot_come_back_is_named():
    def makes_locks(dp):
        return [dp[0], {"here": threading.Lock()}] if dp[0] == 7 else [dp[0] * 10]

    flow = df.MultiProcessMapData(numbers(), 2, makes_locks)
    found = []
    with pytest.raises(TypeError, match=r"component \[1\]\['here'\] is a lock") as caught:
        for datapoint in flow:
            found.append(datapoint)
    assert found == EXPECTED[:7]
    assert "datapoint 7" in "\n".join(caught.value.__notes__)


def test_F2_a_flow_that_cannot_be_loaded_says_why():
    class Fragile:
        def __call__(self, dp):
            return dp

        def __setstate__(self, state):
            raise ImportError("not here")

    fragile = Fragile()
    fragile.something = 1
    with pytest.raises(ImportError, match="not here"):
        list(df.MultiProcessMapData(numbers(), 2, fragile))


@pytest.mark.parametrize("way", WAYS)
def test_F4_worker_that_hangs_is_killed_and_replaced(tmp_path, way, monkeypatch):
    flow = WAYS[way](once(str(tmp_path / "done"), 17, lambda: time.sleep(1000)))
    flow.options = df.parallel.stage.WorkerOptions("forkserver", 1.0, "raise")
    assert list(flow) == EXPECTED


def test_F4_worker_that_is_stopped_is_killed_and_replaced(monkeypatch):
    monkeypatch.setattr(pool, "STOPPED_SECONDS", 0.5)
    monkeypatch.setattr(pool, "TICK_SECONDS", 0.1)
    flow = df.MultiProcessMapData(numbers(), 2, lambda dp: [dp[0] * 10], timeout=None)
    with iter(flow) as iterator:
        found = [next(iterator)]
        stopped = workers(flow)[0]
        os.kill(stopped, signal.SIGSTOP)
        found += iterator
    assert found == EXPECTED
    eventually(lambda: not alive(stopped))


def test_F4_a_datapoint_that_always_hangs_is_named():
    def hangs(dp):
        time.sleep(1000 if dp[0] == 23 else 0)
        return [dp[0] * 10]

    flow = df.MultiProcessMapData(numbers(), 2, hangs, timeout=0.5)
    with pytest.raises(WorkerDied, match="not finished after .* datapoint 23"):
        list(flow)


def test_workers_live_through_interrupts_and_terminations_of_their_group():
    flow = df.MultiProcessMapData(numbers(), 2, lambda dp: [dp[0] * 10])
    with iter(flow) as iterator:
        found = [next(iterator)]
        before = workers(flow)
        for pid, number in itertools.product(before, (signal.SIGINT, signal.SIGTERM)):
            os.kill(pid, number)
        found += iterator
        assert found == EXPECTED
        assert workers(flow) == before


def test_a_worker_that_keeps_its_batches_does_not_see_them_change():
    """A cache, say: its arrays lie in a slot that would be used again."""
    kept = []

    def keep(batch):
        kept.append(batch)
        return [batch[0], np.array([first[0][0, 0] for first in kept])]

    rows = df.DataFromArrays(np.arange(SIZE * 3).reshape(SIZE, 3))
    flow = df.MultiProcessRunner(df.MapData(df.BatchData(rows, 4), keep), 4, 1)
    for number, (batch, firsts) in enumerate(flow):
        assert batch[0, 0] == number * 12
        assert firsts.tolist() == [i * 12 for i in range(number + 1)]


def fails_at_5(dp):
    if dp[0] == 5:
        raise KeyError("five")
    return dp


INPUTS = {
    "by index": lambda: df.MapData(numbers(), fails_at_5),
    "iterated": lambda: df.MapData(iterated(), fails_at_5),
    "that lacks a component": lambda: df.SelectComponent(df.MapData(numbers(), cut_at_5), [0]),
    "batched": lambda: df.MapData(
        df.BatchData(df.MapData(iterated(), fails_at_5), 1), lambda dp: [int(dp[0][0])]
    ),
}


def cut_at_5(dp):
    return [] if dp[0] == 5 else dp


OVER_AN_INPUT = {
    "threads": lambda ds, n, **o: df.MultiThreadMapData(ds, n, list, **o),
    "processes": lambda ds, n, **o: df.MultiProcessMapData(ds, n, list, **o),
    "batches": lambda ds, n, **o: df.MultiProcessMapAndBatchData(ds, n, list, 2, **o),
}


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("stage", OVER_AN_INPUT)
def test_an_error_of_the_input_comes_in_its_place(stage, kind, on_error, workers):
    flow = OVER_AN_INPUT[stage](INPUTS[kind](), workers, on_error=on_error)
    before = 2 if stage == "batches" else 5
    found = []
    with iter(flow) as iterator:
        if stage == "processes" and on_error == "skip" and INPUTS[kind]().random_access:
            assert len(list(iterator)) == SIZE - 1  # the workers read it, and skip the datapoint
            return
        for _ in range(2):  # to ask again asks for the same datapoint
            with pytest.raises(LookupError):
                for datapoint in iterator:
                    found.append(datapoint)
            assert len(found) == before
            position = iterator.state()
    with iter(flow) as restored:
        restored.restore(position)
        with pytest.raises(LookupError):
            next(restored)
