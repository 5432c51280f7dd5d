"""Sources of plain Python and numpy."""

import inspect
import multiprocessing
import queue
import sys
import threading
import time

import numpy as np
import pytest

from towerpack import dataflow
from towerpack.dataflow import (
    BatchData,
    DataFlowTerminated,
    DataFromArrays,
    DataFromGenerator,
    DataFromIterable,
    DataFromList,
    DataFromQueue,
    FakeData,
    FixedSizeData,
    RepeatedData,
    ShuffleData,
    as_flow,
    dataset,
)
from towerpack.dataflow.epoch import Epoch
from towerpack.dataflow.source.stored import log_fixed_order


def test_arrays():
    x, y = np.arange(6).reshape(3, 2), np.array([7, 8, 9])
    flow = DataFromArrays(x, y)
    assert [(a.tolist(), int(b)) for a, b in flow] == [([0, 1], 7), ([2, 3], 8), ([4, 5], 9)]
    batch = flow.read_batch([2, 0], Epoch())
    assert [component.tolist() for component in batch] == [[[4, 5], [0, 1]], [9, 7]]
    assert list(DataFromArrays({"x": x, "y": y})[1]) == ["x", "y"]


def test_arrays_may_be_memory_mapped(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(1000).reshape(100, 10))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    flow = DataFromArrays(mapped, shuffle=True)
    assert isinstance(flow.arrays[0], np.memmap)
    batch = next(iter(BatchData(flow, 100)))[0]
    assert type(batch) is np.ndarray
    assert sorted(batch[:, 0].tolist()) == list(range(0, 1000, 10))


def test_a_batch_of_arrays_is_a_copy():
    x = np.zeros((4, 2))
    next(iter(BatchData(DataFromArrays(x), 2)))[0][...] = 1
    assert not x.any()


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ((), "expected at least one array"),
        (([np.zeros((3, 2)), np.zeros(3)],), r"write DataFromArrays\(x, y\)"),
        (((np.zeros(3), np.zeros(3)),), r"write DataFromArrays\(x, y\)"),
        ((np.zeros(2), np.zeros(3)), r"expected arrays of one length, received lengths \[2, 3\]"),
        ((np.zeros(()),), "each with a first axis of datapoints"),
    ],
)
def test_arrays_are_checked(arrays, words):
    with pytest.raises(ValueError, match=words):
        DataFromArrays(*arrays)


def test_arrays_of_strings_may_be_python_objects():
    names = np.array(["a", "bc"], object)
    assert DataFromArrays(names).arrays[0].dtype == np.dtype("<U2")
    with pytest.raises(
        ValueError, match="strings in column 1, received Python objects such as None"
    ):
        DataFromArrays(names, np.array(["a", None], object))


@pytest.mark.parametrize("use", [lambda data: BatchData(data, 1), DataFromList, as_flow])
def test_arrays_that_are_no_sequence_of_datapoints_are_refused(use):
    with pytest.raises(TypeError, match=r"received a tuple of 2 arrays.*DataFromArrays\(x, y\)"):
        use((np.zeros((3, 2)), np.zeros(3)))


def test_a_pandas_frame():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [1.5, 2.5, 3.5], "n": [1, 2, 3], "name": ["a", "b", "cd"]})
    frame = frame.sort_values("x", ascending=False)
    flow = DataFromArrays(frame)
    assert [dp["n"] for dp in flow] == [3, 2, 1]
    batch = next(iter(BatchData(flow, 3)))
    assert batch["name"].tolist() == ["cd", "b", "a"]
    assert batch["x"].dtype == np.float64
    for use in (lambda data: BatchData(data, 1), DataFromList, as_flow):
        with pytest.raises(TypeError, match=r"received a DataFrame.*DataFromArrays\(frame\)"):
            use(frame)
        with pytest.raises(TypeError, match=r"received a Series.*series.to_numpy"):
            use(frame["n"])


def test_a_hugging_face_data_set():
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "y": [0, 1, 2]})
    rows = rows.with_format("numpy")
    flow = DataFromList(rows, shuffle=True)
    batch = next(iter(BatchData(flow, 3)))
    assert sorted(batch["y"].tolist()) == [0, 1, 2]
    assert batch["x"][:, 0].tolist() == [1.0 + 2 * y for y in batch["y"].tolist()]
    assert [dp["y"] for dp in as_flow(rows)] == [0, 1, 2]


def test_a_torch_data_set():
    torch = pytest.importorskip("torch")
    pairs = torch.utils.data.TensorDataset(torch.arange(6.0).reshape(3, 2), torch.arange(3))
    x, y = next(iter(BatchData(DataFromList(pairs, shuffle=True), 3)))
    assert x.shape == (3, 2)
    assert (x[:, 0] == 2 * y).all()
    assert [int(label) for _, label in as_flow(pairs)] == [0, 1, 2]


def shuffle_defaults():
    public = [getattr(dataflow, name) for name in dataflow.__all__]
    loads = [serializer.load for serializer in public if hasattr(serializer, "save")]
    sets = [getattr(dataset, name) for name in dataset.__all__]
    for maker in [*public, *loads, *sets]:
        function = maker.__init__ if isinstance(maker, type) else maker
        if "shuffle" in inspect.signature(function).parameters:
            yield maker, inspect.signature(function).parameters["shuffle"].default


def test_the_default_of_shuffle_is_the_same_everywhere():
    """No source shuffles unless it is told to, or is a data set that knows its training part."""
    found = dict(shuffle_defaults())
    assert len(found) > 20
    parts = {maker for maker, default in found.items() if default is None}
    assert {default for maker, default in found.items() if maker not in parts} == {False}
    assert all(maker.__module__.startswith(dataset.__name__) for maker in parts)
    assert dataset.MnistSample("train").shuffle
    assert not dataset.MnistSample("test").shuffle


def test_training_on_data_in_a_fixed_order_is_logged(capfd):
    rows = DataFromArrays(np.arange(4))
    log_fixed_order(BatchData(rows, 2))
    assert "DataFromArrays gives its datapoints in the same order" in capfd.readouterr().err
    log_fixed_order(BatchData(ShuffleData(rows), 2))
    log_fixed_order(BatchData(DataFromArrays(np.arange(4), shuffle=True), 2))
    log_fixed_order(BatchData(FakeData([[2]], 4), 2))
    assert not capfd.readouterr().err


def test_a_list_is_shuffled_anew_each_epoch():
    assert list(DataFromList([2, 1, 3])) == [2, 1, 3]
    flow = DataFromList(list(range(30)), shuffle=True)
    passes = [list(flow) for _ in range(3)]
    assert all(sorted(order) == list(range(30)) for order in passes)
    assert len(set(map(tuple, passes))) == 3
    with pytest.raises(TypeError, match="expected a list or another sequence, received <generator"):
        DataFromList(i for i in range(3))


def test_a_generator_function_is_called_for_every_pass():
    flow = DataFromGenerator(lambda: iter([1, 2]))
    assert [list(flow), list(flow)] == [[1, 2]] * 2
    with pytest.raises(TypeError, match=r"has no len\(\)"):
        len(flow)
    with pytest.raises(TypeError, match="expected a generator function or a generator, received 3"):
        DataFromGenerator(3)


@pytest.mark.parametrize("source", [DataFromGenerator, DataFromIterable, as_flow])
def test_a_generator_gives_one_pass_and_then_says_so(source):
    flow = source(i for i in range(5))
    iterator = iter(flow)
    assert next(iterator) == 0
    iterator.restore({"epoch": 0, "at": {"count": 3}})
    assert list(iterator) == [3, 4]
    with pytest.raises(ValueError, match="cannot go back from datapoint 5 to 1"):
        iterator.restore({"epoch": 0, "at": {"count": 1}})
    with pytest.raises(RuntimeError, match="this generator is exhausted: it can be iterated only"):
        iter(flow)
    begun = source(i for i in range(5))
    next(iter(begun))
    with pytest.raises(RuntimeError, match="this generator has been begun before"):
        iter(begun)
    consumed = (i for i in range(0))
    list(consumed)
    with pytest.raises(RuntimeError, match="is exhausted.*DataFromGenerator"):
        list(source(consumed))


def test_a_generator_is_not_repeated_in_silence():
    for stage in (lambda ds: RepeatedData(ds, 2), lambda ds: FixedSizeData(ds, 5)):
        with pytest.raises(RuntimeError, match="this generator is exhausted"):
            list(stage(i for i in range(3)))


def test_an_iterable():
    assert len(DataFromIterable([1, 2])) == 2
    assert list(DataFromIterable({"a": 1})) == ["a"]
    with pytest.raises(TypeError, match=r"has no len\(\): a list_iterator has none"):
        len(DataFromIterable(iter([1])))
    with pytest.raises(TypeError, match="expected something to iterate over, received 3"):
        DataFromIterable(3)


def test_a_queue():
    for filled in (queue.Queue(), multiprocessing.SimpleQueue()):
        for number in range(5):
            filled.put([number])
        flow = DataFromQueue(filled)
        iterator = iter(flow)
        assert [next(iterator), next(iterator)] == [[0], [1]]
        iterator.restore({"epoch": 0, "at": {"count": 3}})
        assert next(iterator) == [3]
        with pytest.raises(ValueError, match="cannot go back"):
            iterator.restore({"epoch": 0, "at": {"count": 1}})
        iterator.close()
    with pytest.raises(TypeError, match="expected a queue"):
        DataFromQueue([1])


@pytest.mark.parametrize("kind", [queue.Queue, queue.SimpleQueue, multiprocessing.Queue])
def test_a_queue_ends_when_its_producer_stops(kind):
    filled = kind()

    def produce():
        for number in range(5):
            filled.put([number])
        filled.put(None)

    producer = threading.Thread(target=produce)
    producer.start()
    flow = DataFromQueue(filled)
    assert [batch[0].tolist() for batch in BatchData(flow, 2, remainder=True)] == [
        [0, 1],
        [2, 3],
        [4],
    ]
    producer.join()
    with pytest.raises(DataFlowTerminated, match="has stopped"):
        next(iter(flow))


def test_a_position_that_the_queue_has_not():
    filled = queue.Queue()
    filled.put(None)
    with pytest.raises(ValueError, match="cannot go to datapoint 3: the flow ended after 0"):
        iter(DataFromQueue(filled)).restore({"epoch": 0, "at": {"count": 3}})


def test_a_wait_for_a_queue_can_be_interrupted():
    flow, ended = DataFromQueue(queue.Queue()), []

    def consume():
        try:
            next(iter(flow))
        except DataFlowTerminated:
            ended.append(True)

    consumer = threading.Thread(target=consume)
    consumer.start()
    while not flow._open:
        time.sleep(0.01)
    flow.interrupt()
    consumer.join(60)
    assert ended == [True]
    flow.queue.put([1])
    assert next(iter(flow)) == [1]


@pytest.mark.skipif(sys.version_info < (3, 13), reason="Queue.shutdown came with Python 3.13")
def test_a_queue_that_is_shut_down_ends_the_pass():
    filled = queue.Queue()
    filled.put(1)
    filled.shutdown()
    assert list(DataFromQueue(filled)) == [1]


def test_fake_data():
    flow = FakeData([[3, 2], [5]], 50, dtype=["uint8", "float64"], domain=[(10, 13), (-1, 1)])
    rows = list(flow)
    assert len(rows) == len(flow) == 50
    whole, real = (np.stack(column) for column in zip(*rows, strict=True))
    assert (whole.dtype, whole.shape) == (np.uint8, (50, 3, 2))
    assert set(np.unique(whole)) == {10, 11, 12}
    assert (real.dtype, real.shape) == (np.float64, (50, 5))
    assert -1 <= real.min() < -0.9 < 0.9 < real.max() < 1


def test_fake_data_that_is_not_random_is_one_datapoint():
    first, second = FakeData([[3]], 2, random=False)
    assert first[0] is second[0]
    assert FakeData([[3]], 2, random=False, seed=1)[0][0].tolist() != first[0].tolist()
    with pytest.raises(ValueError, match="expected 2 of dtype, one for each shape, received 1"):
        FakeData([[1], [2]], dtype=["int32"])
