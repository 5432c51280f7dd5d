"""Many datapoints, many workers: none lost, none doubled, nothing grows."""

from __future__ import annotations

import gc
import hashlib
import os
import platform
import random
import resource
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.leftovers import descriptors
from towerpack import dataflow as df
from towerpack.dataflow.workers import pool
from towerpack.dataflow.workers.worker import private_memory


def source(size):
    rows = np.arange(size * 2, dtype=np.float32).reshape(size, 2)
    return df.DataFromArrays(rows, np.arange(size), shuffle=True, seed=5)


def augment(dp, rng):
    return [dp[0] + rng.random(2, np.float32), int(dp[1])]


def digest(flow, watch=lambda count: None):
    """The hash of a stream, and the indices it had."""
    hashed, seen = hashlib.sha256(), []
    for count, (values, index) in enumerate(flow):
        hashed.update(values.tobytes())
        hashed.update(index.to_bytes(8, "little"))
        seen.append(index)
        watch(count)
    return hashed.hexdigest(), seen


class Footprint:
    """Memory, descriptors and threads, looked at now and then."""

    def __init__(self, every):
        self.every, self.looks = every, []

    def __call__(self, count):
        if count % self.every == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.looks.append((pages * 4096, len(descriptors()), threading.active_count()))

    def assert_flat(self, slack):
        early, late = self.looks[len(self.looks) // 4], self.looks[-1]
        assert late[0] - early[0] < slack, f"memory grew from {early[0]} to {late[0]}"
        assert late[1] <= early[1] + 16, f"descriptors grew from {early[1]} to {late[1]}"
        assert late[2] == early[2]


def check_L1(size):
    flow = df.MultiProcessMapData(source(size), 2, augment)
    footprint = Footprint(size // 20)
    found, seen = digest(flow, footprint)
    assert sorted(seen) == list(range(size)), "lost or doubled"
    assert found == digest(df.MapData(source(size), augment))[0]
    footprint.assert_flat(slack=64 << 20)


def check_L2(size, interval):
    flow = df.MultiProcessMapData(source(size), 2, augment)
    kills, last = 0, time.monotonic()

    def kill(count):
        nonlocal kills, last
        if time.monotonic() - last > interval:
            victim = random.choice(flow.parallel_statistics().workers).pid
            try:
                os.kill(victim, signal.SIGKILL)
                kills += 1
            except ProcessLookupError:
                pass  # it has died since, of the last one
            last = time.monotonic()

    found, seen = digest(flow, kill)
    assert kills > 2, "nobody was killed, so nothing was shown"
    assert sorted(seen) == list(range(size)), "lost or doubled"
    assert found == digest(df.MapData(source(size), augment))[0]


def test_P2_L1_every_datapoint_once_and_in_order():
    check_L1(20_000)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_L1_a_million_datapoints():
    check_L1(1_000_000)


def test_P2_L2_workers_killed_at_random(monkeypatch):
    monkeypatch.setattr(pool, "MAX_DEATHS", 10**9)
    check_L2(60_000, 0.05)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_L2_a_million_datapoints_with_workers_killed_at_random(monkeypatch):
    monkeypatch.setattr(pool, "MAX_DEATHS", 10**9)
    check_L2(1_000_000, 0.5)


def check_L3(workers, size):
    def uneven(dp):
        time.sleep(0.5 if dp[0] == 10 else 0)
        return [dp[0], np.full(10_000, dp[0])]

    flow = df.MultiProcessMapData(
        df.DataFromList([[i] for i in range(size)], shuffle=False),
        workers,
        uneven,
        buffer_size=workers,
    )
    seen = []
    for index, values in flow:
        assert (values == index).all()
        seen.append(index)
        executor = flow._latest.executor
    assert seen == list(range(size))
    # What is under way, what is ready and what we held: bounded, whatever the slow one took.
    assert executor._next_slot < 6 * workers


def test_L3_more_workers_than_cores_and_one_slow_datapoint():
    check_L3(12, 500)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_L3_sixty_four_workers():
    check_L3(64, 20_000)


def fresh_array(dp):
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return [np.ones(150_000, np.uint8), faults]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to")
def test_workers_use_freed_memory_again():
    """A page fault for every 4 kB of every array took most of the time of such functions."""
    faults = [int(dp[1]) for dp in df.MultiProcessMapData(source(600), 1, fresh_array)]
    # Some more arrays are under way on a busy machine. Without the guard it is ten thousand.
    assert faults[-1] - faults[300] < 3000


def test_memory_of_a_process_alone():
    gc.collect()
    before = private_memory()
    kept = bytearray(50_000_000)
    # What earlier tests of this process have left may be freed meanwhile.
    assert 40_000_000 < private_memory() - before < 100_000_000
    del kept


def scratch_arrays(dp, rng):
    for size in rng.integers(1 << 10, 30 << 20, 4):
        np.ones(size, np.uint8)
    return [private_memory()]


def test_the_memory_that_a_worker_keeps_is_bounded():
    memory = [int(dp[0]) for dp in df.MultiProcessMapData(source(300), 1, scratch_arrays)]
    assert max(memory[100:]) < min(memory[:100]) + (100 << 20)
