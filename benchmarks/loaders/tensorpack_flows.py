"""tensorpack 0.11, in Python 3.10."""

import lmdb
import numpy as np
from tensorpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromList,
    MapData,
    MultiProcessRunnerZMQ,
)

from loaders import work

WORKLOADS = ["W1", "W1db", "W2", "W2m", "W3", "W3f", "W4"]


class Database(DataFlow):
    def __init__(self, path):
        self.path, self.database = path, None

    def __len__(self):
        return work.SAMPLES

    def reset_state(self):
        self.database = lmdb.open(self.path, readonly=True, lock=False)

    def __iter__(self):
        for index in np.random.permutation(work.SAMPLES):
            with self.database.begin() as transaction:
                yield [transaction.get(b"%08d" % index)]


class Instant(DataFlow):
    def __len__(self):
        return work.INSTANT_SAMPLES

    def __iter__(self):
        for _ in range(work.INSTANT_SAMPLES):
            yield [work.INSTANT]


class Rows(DataFlow):
    def __init__(self, arrays):
        self.arrays = arrays

    def __len__(self):
        return len(self.arrays[0])

    def __iter__(self):
        x, y = self.arrays
        for index in np.random.permutation(len(x)):
            yield [x[index], y[index]]


def open_flow(workload, directory):
    size = work.BATCH[workload]
    if workload == "W1":
        flow = DataFromList([[path] for path in work.files_of(directory)])
        flow = MapData(flow, lambda dp: [work.load_file(dp[0])])
    elif workload == "W1db":
        flow = MapData(Database(directory + "/lmdb"), lambda dp: [work.load_bytes(dp[0])])
    elif workload in ("W2", "W2m"):
        flow = Instant()
    elif workload in ("W3", "W3f"):
        flow = Rows(work.small_arrays())
        if workload == "W3f":
            flow = MapData(flow, lambda dp: list(work.per_sample(*dp)))
    else:
        flow = Rows(work.tiny_images())
        flow = MapData(flow, lambda dp: [work.pad_crop_flip_normalize(dp[0]), dp[1]])
    if workload == "W2m":
        flow = BatchData(MultiProcessRunnerZMQ(flow, 2), size)
    elif workload == "W3":
        flow = BatchData(flow, size)
    else:
        flow = MultiProcessRunnerZMQ(BatchData(flow, size), 2)
    flow.reset_state()
    return flow
