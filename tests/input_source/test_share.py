"""What several ranks read together is the stream that one process reads."""

import numpy as np
import pytest

from tests.dataflow.datapoints import noisy
from towerpack.dataflow import (
    BatchData,
    DataFromArrays,
    DataFromGenerator,
    FilterData,
    MapData,
    MultiProcessMapData,
    MultiProcessRunner,
    RepeatedData,
)
from towerpack.dataflow.parallel.share import Share
from towerpack.dataflow.stacking import DroppedDatapoint
from towerpack.input_source import BatchQueueInput, FeedInput, QueueInput

ROWS, BATCH = 23, 3


def arrays():
    return DataFromArrays(np.arange(ROWS, dtype="float32"), shuffle=True)


def generated():
    return DataFromGenerator(lambda: ([np.float32(i)] for i in range(ROWS)))


FLOWS = {
    "arrays": lambda: BatchData(arrays(), BATCH),
    "remainder": lambda: BatchData(arrays(), BATCH, remainder=True),
    "augmented": lambda: BatchData(MapData(arrays(), noisy), BATCH),
    "repeated": lambda: BatchData(RepeatedData(arrays(), 2), BATCH),
    "workers": lambda: MultiProcessRunner(BatchData(MapData(arrays(), noisy), BATCH), 4, 2),
    "workers map": lambda: BatchData(MultiProcessMapData(arrays(), 1, noisy), BATCH),
    "generator": lambda: BatchData(generated(), BATCH),
    "drops": lambda: BatchData(FilterData(arrays(), lambda dp: dp[0] % 5 != 0), BATCH),
}


def signature(tf):
    return [tf.TensorSpec([None], tf.float32, "x")]


def read(source, count):
    return [source.next().batch(0)[0].tolist() for _ in range(count)]


def opened(make, state=None, share=None):
    import tensorflow as tf

    source = make()
    source.share = share
    source.setup(signature(tf))
    source.restore(state)
    source.start()
    return source


@pytest.mark.parametrize("name", FLOWS)
def test_the_shares_of_all_ranks_are_the_stream_and_resume_with_any_number(name):
    make = lambda: QueueInput(FLOWS[name]())  # noqa: E731
    whole = opened(make)
    expected = read(whole, 40)
    whole.close()
    ranks, towers, steps = 3, 2, 4
    found = {}
    for rank in range(ranks):
        source = opened(make, share=Share(rank, ranks, towers))
        for step in range(steps):
            for tower in range(towers):
                found[(step * ranks + rank) * towers + tower] = read(source, 1)[0]
        state = source.state()
        source.close()
        assert state["datapoints"]["epoch"] == state["flow"]["epoch"]
    done = ranks * towers * steps
    assert [found[number] for number in range(done)] == expected[:done]
    # The run continues with one rank, and with two.
    alone = opened(make, state)
    assert read(alone, 8) == expected[done : done + 8]
    alone.close()
    for rank in range(2):
        source = opened(make, state, Share(rank, 2))
        assert read(source, 4) == expected[done + rank : done + 8 : 2]
        source.close()


def test_batches_made_by_the_source_are_shared_as_wholes():
    make = lambda: BatchQueueInput(arrays(), BATCH)  # noqa: E731
    whole = opened(make)
    expected = read(whole, 20)
    whole.close()
    for rank in range(2):
        source = opened(make, share=Share(rank, 2))
        assert read(source, 10) == expected[rank::2]
        source.close()


def test_a_rank_makes_only_its_share():
    made = []

    def note(datapoint):
        made.append(float(datapoint[0]))
        return datapoint

    flow = BatchData(MapData(DataFromArrays(np.arange(40, dtype="float32")), note), 4)
    source = opened(lambda: FeedInput(flow), share=Share(1, 2))
    read(source, 5)
    source.close()
    assert sorted(made) == [
        *range(4, 8),
        *range(12, 16),
        *range(20, 24),
        *range(28, 32),
        *range(36, 40),
    ]


def test_a_function_that_drops_a_datapoint_without_announcing_it_is_refused():
    flow = BatchData(MapData(arrays(), lambda dp: None if dp[0] == 7 else dp), BATCH)
    source = opened(lambda: QueueInput(flow), share=Share(0, 2))
    with pytest.raises(DroppedDatapoint, match="FilterData"):
        read(source, 10)
    source.close()


def test_a_finite_source_ends_with_the_flow():
    flow = BatchData(arrays(), BATCH)
    sources = [opened(lambda: FeedInput(flow, infinite=False), share=Share(r, 2)) for r in (0, 1)]
    from towerpack.input_source.base import EndOfData

    counts = []
    for source in sources:
        count = 0
        with pytest.raises(EndOfData):
            while True:
                source.next()
                count += 1
        counts.append(count)
        source.close()
    assert counts == [4, 3]
