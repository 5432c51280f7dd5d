import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.dataflow import (
    BatchData,
    CacheData,
    DataFromArrays,
    FixedSizeData,
    LocallyShuffleData,
    MapData,
    MultiProcessMapAndBatchData,
    MultiProcessRunner,
    MultiProcessRunnerZMQ,
    PrintData,
    RepeatedData,
    RepeatedDataPoint,
    SelectComponent,
    ShardData,
    ShuffleData,
    TakeData,
    TestDataSpeed,
)
from towerpack.input_source import FeedInput, QueueInput
from towerpack.input_source.known_rows import PASSES_ON, known_rows, with_rows


def rows(count=10):
    return DataFromArrays(np.zeros((count, 2), np.float32), np.zeros(count, np.float32))


def batches():
    return BatchData(rows(), 4)


STAGES = {
    CacheData: lambda: CacheData(batches()),
    FixedSizeData: lambda: FixedSizeData(batches(), 3),
    LocallyShuffleData: lambda: LocallyShuffleData(batches(), 2),
    MultiProcessRunner: lambda: MultiProcessRunner(batches(), 1, 1),
    MultiProcessRunnerZMQ: lambda: MultiProcessRunnerZMQ(batches(), 1),
    PrintData: lambda: PrintData(batches()),
    RepeatedData: lambda: RepeatedData(batches(), 2),
    RepeatedDataPoint: lambda: RepeatedDataPoint(batches(), 2),
    SelectComponent: lambda: SelectComponent(batches(), [1, 0]),
    ShardData: lambda: ShardData(batches(), 2, 0),
    ShuffleData: lambda: ShuffleData(batches()),
    TakeData: lambda: TakeData(batches(), 1),
    TestDataSpeed: lambda: TestDataSpeed(batches(), 2),
}


def test_every_stage_that_passes_batches_on_is_tried():
    assert set(STAGES) == PASSES_ON


@pytest.mark.parametrize("make", STAGES.values(), ids=[stage.__name__ for stage in STAGES])
def test_what_is_known_is_true_of_every_batch(make):
    flow = make()
    assert known_rows(flow) == 4
    found = list(flow)
    assert found and all(len(component) == 4 for batch in found for component in batch)


def test_workers_that_batch():
    flow = MultiProcessMapAndBatchData(rows(), 1, list, 4)
    assert known_rows(flow) == 4 and [len(batch[0]) for batch in flow] == [4, 4]
    assert known_rows(MultiProcessMapAndBatchData(rows(), 1, list, 4, remainder=True)) is None


class OwnBatches(BatchData):
    """A user's, which may do what it likes."""


class OwnStage(RepeatedData):
    """Likewise."""


@pytest.mark.parametrize(
    "flow",
    [
        rows(),
        BatchData(rows(), 4, remainder=True),
        BatchData(rows(), 4, use_list=True),
        MapData(batches(), lambda batch: [x[:1] for x in batch]),
        OwnBatches(rows(), 4),
        OwnStage(batches(), 2),
    ],
    ids=["rows", "remainder", "lists", "function", "own batches", "own stage"],
)
def test_what_is_not_certain_is_not_known(flow):
    assert known_rows(flow) is None


def test_only_an_open_first_dimension_is_filled_in():
    for before, after in [([None, 2], [4, 2]), ([3, 2], [3, 2]), ([], []), (None, None)]:
        filled = with_rows(tf.TensorShape(before), 4)
        assert (filled.as_list() if filled.rank is not None else None) == after
    assert with_rows(tf.TensorShape([None]), None).as_list() == [None]


@pytest.mark.parametrize("make", [QueueInput, FeedInput])
@pytest.mark.parametrize("remainder", [False, True])
def test_the_graph_knows_the_size_of_batches(make, remainder):
    specs = [tf.TensorSpec([None, 2], tf.float32, "x"), tf.TensorSpec([None], tf.float32, "y")]
    source = make(BatchData(rows(), 4, remainder=remainder))
    source.setup(specs)
    read = tf.function(source.get_input_tensors).get_concrete_function()
    shapes = [tensor.shape.as_list() for tensor in read.structured_outputs]
    first = None if remainder else 4
    assert shapes == [[first, 2], [first]]


def test_of_a_queue_of_the_users_own_nothing_is_known():
    queue = tf.queue.FIFOQueue(2, [tf.float32, tf.float32])
    source = QueueInput(batches(), queue)
    source.setup([tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None], tf.float32)])
    x, y = source._shapes()
    assert x.as_list() == [None, 2] and y.as_list() == [None]
