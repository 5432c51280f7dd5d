"""`bench`, `TestDataSpeed` and the statistics that they stand on. No test here asserts a time."""

import threading
import time

import cloudpickle
import numpy as np
import pytest

from tests.dataflow.examples import Random, in_order, listed
from towerpack.dataflow import (
    BatchData,
    DataFromArrays,
    JoinData,
    MapData,
    MultiProcessRunner,
    TestDataSpeed,
    bench,
)
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.statistics import (
    ParallelStatistics,
    StageCost,
    WorkerStatistics,
    merge,
    slowest,
    snapshot,
    stage_costs,
    walk,
)

SECONDS = 0.1


def slow(dp):
    time.sleep(0.002)
    return dp


def test_every_stage_of_a_batched_pipeline_is_counted():
    source = DataFromArrays(np.zeros((8, 2)))
    mapped = MapData(source, list)
    flow = BatchData(mapped, 4)
    list(flow)
    assert [stage.statistics.datapoints for stage in (flow, mapped, source)] == [2, 8, 8]
    times = [stage.statistics.nanoseconds for stage in (flow, mapped, source)]
    assert times[0] > times[1] > times[2] > 0


def test_every_stage_of_an_iterated_pipeline_is_counted():
    source = Random()
    mapped = MapData(source, list)
    list(BatchData(mapped, 2))
    assert source.statistics.datapoints == mapped.statistics.datapoints == 7


def test_a_method_that_calls_the_other_is_counted_once():
    class Twice(DataFromArrays):
        def gather(self, indices, epoch):
            self.rows(indices, epoch)
            return super().gather(indices, epoch)

    flow = Twice(np.zeros(5))
    flow.read_batch([0, 1], Epoch())
    assert flow.statistics.datapoints == 2


def test_counting_survives_errors_and_threads():
    flow = MapData(in_order(), lambda dp: 1 // dp[0])
    with pytest.raises(ZeroDivisionError):
        flow.read([0, 1], Epoch())
    flow.read([1, 2], Epoch())
    assert flow.statistics.datapoints == 2
    threads = [threading.Thread(target=lambda: list(BatchData(listed(), 2))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_copy_counts_from_zero():
    flow = in_order()
    list(flow)
    assert cloudpickle.loads(cloudpickle.dumps(flow)).statistics.datapoints == 0
    assert flow.statistics.datapoints == 7


def test_walk_visits_each_stage_once():
    source = in_order()
    join = JoinData([source, MapData(source, list)])
    assert [type(stage).__name__ for stage in walk(join)] == ["JoinData", "DataFromList", "MapData"]


def test_snapshots_of_workers_add_up():
    parent, worker = BatchData(in_order(), 2), BatchData(in_order(), 2)
    list(worker)
    first = snapshot(worker)
    merge(parent, first)
    list(worker)
    merge(parent, snapshot(worker), first)
    assert snapshot(parent) == snapshot(worker)
    with pytest.raises(ValueError, match="expected a snapshot of 2 stages, received 1"):
        merge(parent, [[1, 1]])


def test_costs_are_exclusive():
    flow = BatchData(MapData(in_order(), slow), 2)
    since = snapshot(flow)
    list(flow)
    costs = stage_costs(flow, since)
    assert [cost.label for cost in costs] == ["BatchData", "MapData(slow)", "DataFromList"]
    assert [cost.depth for cost in costs] == [0, 1, 2]
    assert slowest(costs).label == "MapData(slow)"
    assert slowest(costs).microseconds >= 2000
    assert slowest([]) is None


class Pool(Random):
    """A stage that says it has workers."""

    def __init__(self, ds, fill):
        super().__init__()
        self.ds, self.fill = ds, fill

    def inputs(self):
        return (self.ds,)

    def __iter__(self):
        for dp in self.ds:
            time.sleep(0.001)
            yield dp

    def parallel_statistics(self):
        workers = [WorkerStatistics(i, 100 + i, 0.5, 0.1, 2**20, 3) for i in range(2)]
        return ParallelStatistics(workers, self.fill, 10)


def test_the_time_of_workers_is_not_that_of_the_stage_above():
    flow = Pool(MapData(in_order(), slow), 0.5)
    list(flow)
    pool, mapped, _ = stage_costs(flow)
    assert pool.parallel
    assert pool.workers == 0
    assert mapped.workers == 2
    assert mapped.load == mapped.seconds / 2


def test_bench_in_this_process():
    result = bench(BatchData(MapData(in_order(), slow), 2), seconds=SECONDS)
    assert result.throughput > 0
    assert result.datapoints > 0
    assert "MapData(slow) is the slowest stage" in result.verdict
    assert "MultiProcessRunner(flow, num_prefetch, num_proc)" in result.verdict
    text = str(result)
    assert "MapData(slow)" in text
    assert "█" in text
    assert text.splitlines()[-1] == result.verdict
    assert "\x1b" not in text


def test_bench_attributes_the_time_of_single_datapoints():
    result = bench(MapData(MapData(in_order(), slow), list), seconds=SECONDS)
    assert result.verdict.startswith("MapData(slow) is the slowest stage")


def test_bench_of_an_iterated_flow():
    assert bench(MapData(Random(), slow), SECONDS).verdict.startswith("MapData(slow)")


def test_bench_with_a_profile():
    result = bench(MapData(in_order(), slow), SECONDS, profile=True)
    assert any("sleep" in line.function for line in result.profile)
    assert "where the time goes" in str(result)


def test_bench_of_nothing():
    with pytest.raises(ValueError, match="expected datapoints, but an epoch of Source gave none"):
        bench([])


def test_bench_with_workers():
    flow = MultiProcessRunner(BatchData(MapData(listed(200), slow), 4), 4, 2)
    result = bench(flow, seconds=0.5)
    (parallel,) = result.parallel.values()
    assert len(parallel.workers) == 2
    assert 0 <= parallel.queue_fill <= 1
    assert "worker 1: busy" in str(result)


def cost(label, seconds, workers=0, parallel=False):
    return StageCost(label, 0, workers, parallel, 10, seconds)


@pytest.mark.parametrize(
    ("fill", "stages", "words"),
    [
        (0.0, [cost("Runner", 5, parallel=True), cost("Map", 9, 2)], "Map is the slowest stage"),
        (0.9, [cost("Runner", 0, parallel=True), cost("Map", 1, 2)], "faster than the consumer"),
        (0.9, [cost("Batch", 5), cost("Runner", 0, parallel=True), cost("Map", 1, 2)],
         "Batch is the slowest stage, 91% of the time, in this process, while workers wait"),
        (0.0, [cost("Runner", 5, parallel=True), cost("Map", 0.2, 2)], "waited 5 s for 0.1 s"),
    ],
)  # fmt: skip
def test_verdicts(fill, stages, words):
    from towerpack.dataflow import BenchResult

    workers = [WorkerStatistics(i, None, 0, 1, 0) for i in range(2)]
    result = BenchResult(
        "x", 10, 5.0, 0.1, stages, {"Runner": ParallelStatistics(workers, fill, 4)}
    )
    assert words in result.verdict


def test_speed_test():
    flow = TestDataSpeed(in_order(), size=20, warmup=3)
    assert flow.start() > 0
    assert flow.start() > 0
    assert list(flow) == list(in_order())


def test_speed_test_before_the_first_datapoint():
    calls = []
    flow = TestDataSpeed(MapData(in_order(), lambda dp: calls.append(1) or dp), size=20)
    assert len(list(flow)) == 7
    assert len(calls) == 27
    assert len(list(flow)) == 7
    assert len(calls) == 34
