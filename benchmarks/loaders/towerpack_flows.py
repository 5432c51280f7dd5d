"""towerpack. Two workers; W3, which is plain indexing, needs none."""

import lmdb
import numpy as np
from loaders import work

from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromArrays,
    DataFromList,
    MapData,
    MultiProcessRunner,
)

WORKLOADS = ["W1", "W1db", "W2", "W2m", "W3", "W3f", "W4"]
AHEAD = 8


class Database(DataFlow):
    """The benchmark's own LMDB, values only, shuffled."""

    random_access = True

    def __init__(self, path):
        self.path, self.database = path, None

    def __len__(self):
        return work.IMAGES

    def __getstate__(self):
        return {"path": self.path, "database": None}

    def get(self, index, pass_):
        if self.database is None:
            self.database = lmdb.open(self.path, readonly=True, lock=False)
        order = np.random.default_rng(pass_.epoch).permutation(work.IMAGES)
        with self.database.begin() as transaction:
            return [transaction.get(b"%08d" % order[index])]


class Instant(DataFlow):
    random_access = True

    def __len__(self):
        return work.INSTANT_SAMPLES

    def get(self, index, pass_):
        return [work.INSTANT]


def open_flow(workload, directory):
    size = work.BATCH[workload]
    if workload == "W1":
        source = DataFromList([[path] for path in work.files_of(directory)], shuffle=True)
        flow = MapData(source, lambda dp, rng: [work.load_file(dp[0], rng.random)])
    elif workload == "W1db":
        source = Database(directory + "/lmdb")
        flow = MapData(source, lambda dp, rng: [work.load_bytes(dp[0], rng.random)])
    elif workload == "W2":
        flow = Instant()
    elif workload == "W2m":
        return BatchData(MultiProcessRunner(Instant(), 200, 2), size)
    elif workload == "W3":
        return BatchData(DataFromArrays(*work.small_arrays(), shuffle=True), size)
    elif workload == "W3f":
        source = DataFromArrays(*work.small_arrays(), shuffle=True)
        flow = MapData(source, lambda dp: work.per_sample(*dp))
    elif workload == "W4":
        source = DataFromArrays(*work.tiny_images(), shuffle=True)
        flow = MapData(
            source, lambda dp, rng: [work.pad_crop_flip_normalize(dp[0], rng.random), dp[1]]
        )
    return MultiProcessRunner(BatchData(flow, size), AHEAD, 2)
