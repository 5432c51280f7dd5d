"""towerpack. Two workers; W3, which is plain indexing, needs none; W4 augments whole batches."""

import itertools

from loaders import work
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromArrays,
    DataFromList,
    LMDBData,
    MapData,
    MapDataComponent,
    MultiProcessRunner,
    imgaug,
    kept_workers,
)

WORKLOADS = ["W1", "W1db", "W2", "W2m", "W3", "W3f", "W4"]
AHEAD = 8


class Instant(DataFlow):
    def __len__(self):
        return work.INSTANT_SAMPLES

    def rows(self, indices, epoch):
        return [[work.INSTANT] for _ in indices]


class Epochs:
    """One pass after another, by the same workers: what a trainer's QueueInput does."""

    def __init__(self, flow):
        self.flow = flow

    def __iter__(self):
        with kept_workers(self.flow):
            for epoch in itertools.count():
                yield from self.flow.iterate(epoch)


def drawing(rng, count):
    """A function that gives one of `count` uniform numbers after another: drawn at once."""
    return iter(rng.random(count).tolist()).__next__


def open_flow(workload, directory):
    size = work.BATCH[workload]
    if workload == "W1":
        source = DataFromList([[path] for path in work.files_of(directory)], shuffle=True)
        flow = MapData(source, lambda dp, rng: [work.load_file(dp[0], drawing(rng, 5))])
    elif workload == "W1db":
        source = LMDBData(directory + "/lmdb", shuffle=True)
        flow = MapData(source, lambda dp, rng: [work.load_bytes(dp[1], drawing(rng, 5))])
    elif workload == "W2":
        flow = Instant()
    elif workload == "W2m":
        return Epochs(BatchData(MultiProcessRunner(Instant(), 200, 2), size))
    elif workload == "W3":
        return BatchData(DataFromArrays(*work.small_arrays(), shuffle=True), size)
    elif workload == "W3f":
        source = DataFromArrays(*work.small_arrays(), shuffle=True)
        flow = MapData(source, lambda dp: work.per_sample(*dp))
    elif workload == "W4":
        batches = BatchData(DataFromArrays(*work.tiny_images(), shuffle=True), size)
        augment = imgaug.BatchPadCropFlip(4, mean=work.MEAN, std=work.STD)
        return Epochs(MultiProcessRunner(MapDataComponent(batches, augment, 0), AHEAD, 2))
    return Epochs(MultiProcessRunner(BatchData(flow, size), AHEAD, 2))
