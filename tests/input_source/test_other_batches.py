"""Going on with batches of another size: no datapoint twice, none left out."""

import json
import time

import numpy as np
import pytest

from towerpack._tensorflow import tf
from towerpack.dataflow import BatchData, DataFromArrays, MapData, MultiThreadMapData
from towerpack.input_source import BatchQueueInput, FeedInput, QueueInput, TFDatasetInput

SAMPLES = 24
SIGNATURE = [tf.TensorSpec([None], tf.int64, "x")]


def numbers():
    return DataFromArrays(np.arange(SAMPLES), shuffle=True)


FLOWS = {
    "by index": lambda size: BatchData(numbers(), size),
    "in sequence": lambda size: BatchData(
        MultiThreadMapData(numbers(), 2, lambda dp: dp, buffer_size=4, strict=True), size
    ),
    "below another stage": lambda size: MapData(BatchData(numbers(), size), lambda dp: dp),
}
SOURCES = {"queue": QueueInput, "feed": FeedInput}


def took(source, batches, state=None):
    """What the first batches hold, and the state after them."""
    source.setup(SIGNATURE)
    if state is not None:
        source.restore(json.loads(json.dumps(state)))
    source.start()
    found = []
    for _ in range(batches):
        found.append(source.next().tensors(0)[0].numpy().tolist())
        time.sleep(0.03)  # so that there are marks of the position in between
    state = source.state()
    source.close()
    return [number for batch in found for number in batch], state


def order():
    """Of the datapoints, in the first passes."""
    return [int(number) for epoch in range(3) for (number,) in numbers().iterate(epoch)]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("taken", [1, 3, 4, 5])  # of 4 batches of a pass
def test_other_batches_go_on_where_those_before_were(flow, source, taken):
    make, flow = SOURCES[source], FLOWS[flow]
    seen, state = took(make(flow(6)), taken)
    for size, batches in ((3, 2), (2, 6), (6, 1)):
        more, state = took(make(flow(size)), batches, state)
        seen += more
    assert seen == order()[: len(seen)]


@pytest.mark.parametrize("flow", FLOWS)
def test_what_are_no_whole_batches_comes_again_and_is_said(flow, capsys):
    flow = FLOWS[flow]
    _, state = took(QueueInput(flow(4)), 2)
    rest, _ = took(QueueInput(flow(6)), 3, state)
    assert rest == order()[6:24]
    warning = "not a multiple of the batch size 6: the last 2 of them come a second time"
    assert warning in capsys.readouterr().err


def test_a_state_that_was_restored_and_saved_at_once_says_the_same():
    flow = FLOWS["by index"]
    _, state = took(QueueInput(flow(6)), 2)
    for size in (3, 4, 2, 6):
        source = QueueInput(flow(size))
        source.setup(SIGNATURE)
        source.restore(state)
        state = source.state()
    rest, _ = took(QueueInput(flow(6)), 2, state)
    assert rest == order()[12:24]


def test_single_datapoints_and_datasets_go_on_as_well():
    _, state = took(BatchQueueInput(numbers(), 6), 1)
    assert took(BatchQueueInput(numbers(), 3), 2, state)[0] == order()[6:12]
    dataset = tf.data.Dataset.range(SAMPLES)
    source = TFDatasetInput(dataset.batch(6, drop_remainder=True))
    _, state = took(source, 3)
    half = TFDatasetInput(dataset.batch(3, drop_remainder=True))
    assert took(half, 2, state)[0] == list(range(18, 24))
    assert (source.batch_size(), half.batch_size()) == (6, 3)


def test_how_many_datapoints_a_batch_has():
    assert QueueInput(FLOWS["below another stage"](6)).batch_size() == 6
    assert QueueInput(FLOWS["by index"](6)).batch_size() == 6
    assert BatchQueueInput(numbers(), 5).batch_size() == 5
    source = QueueInput(numbers())
    assert source.batch_size() is None
    source.setup([tf.TensorSpec([7], tf.int64, "x")])
    assert source.batch_size() == 7
