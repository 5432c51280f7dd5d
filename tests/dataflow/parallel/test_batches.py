"""Batches over workers: stacked by them in shared memory, and the same as stacked here."""

from __future__ import annotations

import numpy as np
import pytest

from tests.dataflow.laws import frozen
from tests.dataflow.parallel.examples import STREAMS, THREADS, named
from towerpack import dataflow as df
from towerpack.dataflow.epoch import Epoch

SINGLE = [entry for entry in [*STREAMS, *THREADS] if "batch" not in entry[0]]


@pytest.mark.parametrize("remainder", [False, True])
@pytest.mark.parametrize("entry", SINGLE, ids=named)
def test_P1_a_batch_over_workers_equals_one_made_here(entry, remainder):
    name, make, _ = entry
    if "of copies" in name:
        pytest.skip("its stream depends on the number of workers")
    flows = [df.BatchData(make(workers), 2, remainder=remainder) for workers in (0, 2)]
    rows = list(make(0).iterate(1))
    expected = [
        frozen(df.BatchData.aggregate_batch(rows[i : i + 2]))
        for i in range(0, len(rows), 2)
        if remainder or i + 2 <= len(rows)
    ]
    for flow in flows:
        assert [frozen(batch) for batch in flow.iterate(1)] == expected


def test_P3_a_batch_over_workers_restores_everywhere():
    for make in (
        lambda n: df.MultiProcessMapData([[i] for i in range(9)], n, lambda dp: [dp[0] * 2]),
        lambda n: df.MultiProcessMapData(
            df.DataFromGenerator(lambda: ([i] for i in range(9))), n, lambda dp: [dp[0] * 2]
        ),
    ):
        whole = [frozen(batch) for batch in df.BatchData(make(0), 2, remainder=True)]
        with df.BatchData(make(2), 2, remainder=True).iterate() as iterator:
            states = [iterator.state()]
            states += [iterator.state() for _ in iterator]
        assert len(states) == len(whole) + 1
        for position, state in enumerate(states):
            with df.BatchData(make(3), 2, remainder=True).iterate() as other:
                other.restore(state)
                assert [frozen(batch) for batch in other] == whole[position:]


def test_a_batch_comes_from_the_worker_without_a_copy():
    flow = df.MultiProcessMapData([[i] for i in range(64)], 2, lambda dp: [np.full(5000, dp[0])])
    for number, (batch,) in enumerate(df.BatchData(flow, 8)):
        assert batch[:, 0].tolist() == list(range(number * 8, number * 8 + 8))
        root = batch.base
        assert (
            isinstance(root, np.ndarray) and root.dtype == np.uint8 and root.nbytes > batch.nbytes
        )
    assert flow.statistics.datapoints == 64


def test_dropped_datapoints_leave_full_batches():
    flow = df.MultiProcessMapData(
        [[i] for i in range(30)], 2, lambda dp: dp if dp[0] < 9 or dp[0] % 2 else None
    )
    batches = [batch[0].tolist() for batch in df.BatchData(flow, 4)]
    kept = [i for i in range(30) if i < 9 or i % 2]
    assert batches == [kept[i : i + 4] for i in range(0, len(kept) - 3, 4)]


def test_shapes_that_differ_are_named_as_they_are_without_workers():
    def ragged(dp):
        return [np.zeros(3 + (dp[0] == 13))]

    messages = []
    for workers in (0, 2):
        flow = df.BatchData(df.MultiProcessMapData([[i] for i in range(20)], workers, ragged), 4)
        with flow.iterate() as iterator:
            for _ in range(3):
                next(iterator)
            with pytest.raises(df.BatchError) as caught:
                next(iterator)
            assert iterator.state()["at"]["count"] == 12
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "datapoint 13" in messages[0] and "(3,)" in messages[0] and "(4,)" in messages[0]


def test_F2_an_error_within_a_batch_leaves_the_position_before_it(tmp_path):
    obstacle = tmp_path / "obstacle"
    obstacle.touch()

    def fails_for_now(dp):
        if dp[0] == 6 and obstacle.exists():
            raise KeyError("not yet")
        return dp

    flow = df.BatchData(df.MultiProcessMapData([[i] for i in range(12)], 2, fails_for_now), 4)
    with flow.iterate() as iterator:
        assert next(iterator)[0].tolist() == [0, 1, 2, 3]
        with pytest.raises(KeyError, match="not yet") as caught:
            next(iterator)
        assert "datapoint 6" in "".join(caught.value.__notes__)
        obstacle.unlink()
        assert [batch[0].tolist() for batch in iterator] == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_single_datapoints_and_batches_in_turn():
    iterator = df.MultiProcessMapData([[i] for i in range(20)], 2, lambda dp: dp).open(Epoch())
    assert [next(iterator), next(iterator)] == [[0], [1]]
    batch, count = iterator.next_batch(3, 2)
    assert (batch[0].tolist(), count) == ([2, 3, 4], 3)
    assert next(iterator) == [5]
    batch, count = iterator.next_batch(30, 6)
    assert (batch[0].tolist(), count) == (list(range(6, 20)), 14)
    with pytest.raises(StopIteration):
        iterator.next_batch(3, 20)
    iterator.close()


@pytest.mark.parametrize("remainder", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stage", [df.MultiThreadMapData, df.MultiProcessMapData])
def test_an_error_of_the_input_is_not_taken_for_the_end_of_a_batch(stage, workers, remainder):
    def fails(dp):
        if dp[0] == 5:
            raise KeyError("five")
        return dp

    source = df.MapData(df.DataFromGenerator(lambda: ([i] for i in range(9))), fails)
    found = []
    with pytest.raises(KeyError):
        for batch in df.BatchData(stage(source, workers, list), 4, remainder=remainder):
            found.append(batch[0].tolist())
    assert found == [[0, 1, 2, 3]]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_batches_of_one(workers):
    source = df.DataFromGenerator(lambda: ([i] for i in range(6)))
    ones = df.MultiProcessMapAndBatchData(source, workers, list, batch_size=1)
    found = [batch[0].tolist() for batch in df.BatchData(ones, 2)]
    assert found == [[[0], [1]], [[2], [3]], [[4], [5]]]
