import numpy as np
import pytest

from tests.dataflow.examples import Random, dropping, filtered, in_order, iterated
from towerpack.dataflow import (
    BatchData,
    BatchDataByShape,
    BatchError,
    BucketBatchData,
    DataFromArrays,
    DroppedDatapoint,
    LocallyShuffleData,
    MapData,
    MultiProcessRunner,
    ProxyDataFlow,
    RepeatedData,
    SelectComponent,
    ShuffleData,
    TakeData,
)
from towerpack.dataflow.base import Batching
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.stage.bucket import pad_rows


def firsts(flow, epoch=0):
    return [batch[0].tolist() for batch in flow.iterate(epoch)]


@pytest.mark.parametrize("source", [in_order, iterated])
def test_batches(source):
    assert firsts(BatchData(source(), 3)) == [[0, 1, 2], [3, 4, 5]]
    assert firsts(BatchData(source(), 3, remainder=True)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert len(BatchData(source(), 3)) == 2
    assert len(BatchData(source(), 3, remainder=True)) == 3


def test_lists_instead_of_arrays():
    flow = BatchData(in_order(), 2, use_list=True)
    assert next(iter(flow)) == [[0, 1], [0, 10]]
    assert flow[1] == [[2, 3], [20, 30]]


@pytest.mark.parametrize("use_list", [False, True])
def test_batches_are_filled_up_when_datapoints_are_dropped(use_list):
    kept = [dp[0] for dp in dropping().iterate(1)]
    flow = BatchData(dropping(), 4, remainder=True, use_list=use_list)
    batches = [list(batch[0]) for batch in flow.iterate(1)]
    assert batches == [kept[:4], kept[4:]]
    assert [list(batch[0]) for batch in BatchData(filtered(), 4).iterate(1)] == [kept[:4]]


def test_a_function_is_called_once_for_each_datapoint_also_when_it_drops():
    calls = []

    def count(dp):
        calls.append(dp[0])
        return dp if dp[0] % 3 else None

    list(BatchData(MapData(in_order(), count), 2, remainder=True))
    assert calls == list(range(7))


def test_by_index_a_dropped_datapoint_is_an_error_that_says_what_to_do():
    flow = BatchData(dropping(), 2)
    with pytest.raises(BatchError, match=r"MultiProcessMapData\(ds, num_proc, func\) before this"):
        flow.read(range(flow.num_indices()), Epoch())
    with pytest.raises(DroppedDatapoint, match="FilterData"):
        BatchData(dropping(), 2, use_list=True).read(range(4), Epoch())
    assert not BatchData(filtered(), 2).random_access


def test_after_a_drop_every_epoch_still_comes_whole():
    flow = RepeatedData(BatchData(dropping(), 2), 3)
    assert len(list(flow)) == len(list(flow)) == 9


def test_arrays_are_indexed_as_a_whole():
    x = np.arange(40.0).reshape(10, 4)
    seen = []

    class Watched(DataFromArrays):
        def gather(self, indices, epoch):
            seen.append(list(indices))
            return super().gather(indices, epoch)

    assert [batch[0].tolist() for batch in BatchData(Watched(x), 5)] == [
        x[:5].tolist(),
        x[5:].tolist(),
    ]
    assert seen == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_batches_go_where_the_pass_says():
    made = []

    def allocate(shape, dtype):
        made.append(np.empty(shape, dtype))
        return made[-1]

    for source in (in_order(), DataFromArrays(np.eye(4)), MapData(in_order(), list)):
        batch = BatchData(source, 2).read([0], Epoch(allocate=allocate))[0]
        assert all(any(component is array for array in made) for component in batch)


def test_the_next_batches_at_once_are_those_that_would_have_come():
    flow = BatchData(DataFromArrays(np.arange(40), np.arange(40) % 3, shuffle=True), 3)
    singles = list(flow.iterate(2))
    iterator, stacks = flow.iterate(2), []
    stacks.append(iterator.next_stack(4))
    assert next(iterator)[0].tolist() == singles[4][0].tolist()
    stacks.append(iterator.next_stack(100))
    assert iterator.next_stack(100) is None
    assert [count for _, count in stacks] == [4, 8]
    assert [x.shape for x in stacks[1][0]] == [(8, 3), (8, 3)]
    for (stack, _), begin in zip(stacks, [0, 5], strict=True):
        for row, label in zip(*stack, strict=True):
            assert [row.tolist(), label.tolist()] == [x.tolist() for x in singles[begin]]
            begin += 1
    assert flow.statistics.datapoints == 2 * 13
    rest = flow.iterate(2)
    rest.restore(iterator.state())
    assert [x[0].tolist() for x in rest] == [x[0].tolist() for x in iterator]


def test_rows_that_are_made_one_by_one_are_not_stacked():
    flow = BatchData(MapData(in_order(), lambda dp: dp), 2)
    iterator = flow.iterate(0)
    assert iterator.next_stack(3) is None
    assert next(iterator)[0].tolist() == [0, 1]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "3", True, None])
def test_a_batch_size_is_a_positive_integer(wrong):
    with pytest.raises((TypeError, ValueError), match="batch_size, received"):
        BatchData([1], wrong)


def test_a_batch_larger_than_the_flow_is_noticed():
    with pytest.raises(ValueError, match=r"batch_size 9 is larger than the flow \(7 datapoints\)"):
        BatchData(in_order(), 9)
    assert len(list(BatchData(in_order(), 9, remainder=True))) == 1


def test_aggregate_batch():
    assert BatchData.aggregate_batch([[1], [2]])[0].dtype == np.int32
    assert BatchData.aggregate_batch([[1], [2]], use_list=True) == [[1, 2]]


def test_an_error_within_a_batch_leaves_no_false_position():
    def fails(dp):
        if dp[0] == 4:
            raise KeyError(dp[0])
        return dp

    indexed = BatchData(MapData(in_order(), fails), 2).iterate()
    next(indexed), next(indexed)
    state = indexed.state()
    with pytest.raises(KeyError):
        next(indexed)
    assert indexed.state() == state
    flow = BatchData(MapData(Random(), fails), 3, remainder=True)
    sequential, restored = flow.iterate(), flow.iterate()
    next(sequential)
    with pytest.raises(KeyError):
        next(sequential)
    restored.restore(sequential.state())
    assert [batch[0].tolist() for batch in sequential] == [[5, 6]]
    assert [batch[0].tolist() for batch in restored] == [[5, 6]]


def one_odd_dtype(dp):
    return [np.zeros(2, np.float32 if dp[0] == 5 else np.float64)]


@pytest.mark.parametrize("source", [in_order, iterated])
@pytest.mark.parametrize(
    "stage",
    [
        lambda ds: BatchData(ds, 2),
        lambda ds: BatchData(MapData(ds, lambda dp: (dp[0],) * dp[0].itemsize), 2, use_list=True),
        lambda ds: BucketBatchData(ds, 2, [9]),
        lambda ds: BatchDataByShape(ds, 2, 0),
    ],
)
def test_errors_of_a_batch_name_its_stage_and_its_datapoints(source, stage):
    flow = stage(MapData(source(), one_odd_dtype))
    with pytest.raises(BatchError, match="datapoint 5") as caught:
        list(flow)
    assert caught.value.__notes__[-1] == f"in {flow.label()}, at datapoints 4 to 5 of epoch 0"


def test_a_datapoint_without_a_length_is_named():
    with pytest.raises(TypeError) as caught:
        list(BucketBatchData(MapData(in_order(), lambda dp: dp), 2, [9]))
    assert caught.value.__notes__ == ["in BucketBatchData, at datapoint 0 of epoch 0"]


def test_by_shape():
    points = [[np.zeros(n), n] for n in (1, 2, 1, 3, 2, 1, 1)]
    flow = BatchDataByShape(points, 2, 0)
    assert [batch[1].tolist() for batch in flow] == [[1, 1], [2, 2], [1, 1]]
    rest = BatchDataByShape(points, 3, 0, remainder=True)
    assert [batch[1].tolist() for batch in rest] == [[1, 1, 1], [2, 2], [3], [1]]
    for epoch in range(3):  # nothing is carried over
        assert [batch[1].tolist() for batch in flow.iterate(epoch)] == [[1, 1], [2, 2], [1, 1]]
    with pytest.raises(TypeError, match="has no len"):
        len(flow)
    with pytest.raises(LookupError) as caught:
        list(BatchDataByShape(points, 2, 5))
    assert caught.value.__notes__ == ["in BatchDataByShape, at datapoint 0 of epoch 0"]


def test_buckets():
    points = [{"tokens": list(range(n)), "n": n} for n in (1, 5, 2, 9, 3, 6, 12)]
    flow = BucketBatchData(points, [2, 2, 1], boundaries=[3, 8], length="tokens", pad_value=-1)
    batches = list(flow)
    assert [batch["n"].tolist() for batch in batches] == [[1, 2], [9], [5, 6], [12], [3]]
    assert batches[0]["tokens"].tolist() == [[0, -1], [0, 1]]
    assert batches[0]["tokens"].dtype == np.int32
    cut = BucketBatchData(points, 2, [3, 8], length=lambda dp: dp["n"], remainder=False)
    assert [batch["n"].tolist() for batch in cut] == [[1, 2], [5, 6], [9, 12]]


def test_padding_of_several_axes_and_values():
    rows = [(np.ones((1, 2), np.float32), [1.5], "a"), (np.ones((2, 1), np.float32), [], "b")]
    image, numbers, name = pad_rows(rows, pad_value={0: 9, 1: -1})
    assert image.tolist() == [[[1, 1], [9, 9]], [[1, 9], [1, 9]]]
    assert numbers.tolist() == [[1.5], [-1]]
    assert numbers.dtype == np.float32
    assert name.tolist() == ["a", "b"]
    assert pad_rows([np.arange(2), np.arange(3)]).tolist() == [[0, 1, 0], [0, 1, 2]]
    assert pad_rows([[[]], [[]]])[0].shape == (2, 0)
    assert pad_rows([[[2**40]], [[1, 2]]])[0].dtype == np.int64


def test_B2_padding_errors_name_component_and_datapoint():
    with pytest.raises(BatchError, match=r"component \['x'\] of datapoint 5: expected 1 axes and"):
        pad_rows([{"x": np.zeros(2)}, {"x": np.zeros((3, 1))}], indices=[4, 5])
    with pytest.raises(BatchError, match="received shape .3,. and dtype float32"):
        pad_rows([[np.zeros(2)], [np.zeros(3, np.float32)]])
    with pytest.raises(BatchError) as caught:
        pad_rows([[object()], [object()]])
    assert caught.value.__notes__ == ["in component [0]"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((2, [3, 2]), "expected boundaries that grow"),
        (([1, 2], [3, 5]), "expected 3 batch sizes, one more than the boundaries, received 2"),
        ((0, [3]), "positive batch_size"),
    ],
)
def test_bucket_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        BucketBatchData([], *arguments)


class Halved(SelectComponent):
    def apply(self, rows, indices, epoch):
        return [[x[:1] for x in row] for row in rows]


def test_a_flow_knows_the_size_of_its_batches():
    batches = BatchData(in_order(), 2)
    assert in_order().batching() is None
    assert batches.batching() == Batching(2, exact=True)
    assert BatchData(in_order(), 2, remainder=True).batching() == Batching(2, exact=False)
    assert BatchData(in_order(), 2, use_list=True).batching() == Batching(2, exact=False)
    assert BatchData(batches, 3).batching() == Batching(3, exact=True)
    for keeps in (
        RepeatedData(batches, 2),
        ShuffleData(TakeData(batches, 1)),
        LocallyShuffleData(batches, 2),
        SelectComponent(batches, [0]),
        MultiProcessRunner(batches, 1, 0),
        ProxyDataFlow(batches),
    ):
        assert keeps.batching() == Batching(2, exact=True), keeps.label()
    for changes in (MapData(batches, list), Halved(batches, [0])):
        assert changes.batching() == Batching(2, exact=False), changes.label()
