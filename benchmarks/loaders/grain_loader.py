"""grain: MapDataset, batched in two worker processes."""

import random

import grain
import lmdb
import numpy as np
from absl import flags

from loaders import work

flags.FLAGS.mark_as_parsed()  # grain looks at a flag of its own, which only `app.run` would parse
WORKLOADS = ["W1", "W1db", "W2", "W2m", "W3", "W3f", "W4"]


class Database:
    def __init__(self, path):
        self.path, self.database = path, None

    def __len__(self):
        return work.SAMPLES

    def __getstate__(self):
        return {"path": self.path, "database": None}

    def __getitem__(self, index):
        if self.database is None:
            self.database = lmdb.open(self.path, readonly=True, lock=False)
        with self.database.begin() as transaction:
            return transaction.get(b"%08d" % index)


class Instant:
    def __len__(self):
        return work.INSTANT_SAMPLES

    def __getitem__(self, index):
        return work.INSTANT


class Rows:
    def __init__(self):
        self.x, self.y = work.small_arrays()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class Tiny:
    def __init__(self):
        self.images, self.labels = work.tiny_images()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def tiny(row):
    return work.pad_crop_flip_normalize(row[0]), row[1]


def mapped(row):
    return work.per_sample(*row)


def open_flow(workload, directory):
    size = work.BATCH[workload]
    if workload == "W1":
        files = work.files_of(directory)
        flow = grain.MapDataset.source(files).shuffle(seed=0).map(work.load_file)
    elif workload == "W1db":
        flow = grain.MapDataset.source(Database(directory + "/lmdb")).shuffle(seed=0)
        flow = flow.map(work.load_bytes)
    elif workload in ("W2", "W2m"):
        flow = grain.MapDataset.source(Instant())
    elif workload == "W3":
        flow = grain.MapDataset.source(Rows()).shuffle(seed=0)
    elif workload == "W3f":
        flow = grain.MapDataset.source(Rows()).shuffle(seed=0).map(mapped)
    else:
        flow = grain.MapDataset.source(Tiny()).shuffle(seed=0).map(tiny)
    read = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2 * size)
    if workload == "W3":
        return flow.batch(size, drop_remainder=True).to_iter_dataset(
            grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        )
    workers = grain.MultiprocessingOptions(num_workers=2, per_worker_buffer_size=4)
    if workload == "W2m":
        singly = flow.to_iter_dataset(read).mp_prefetch(workers)
        return singly.batch(size, drop_remainder=True)
    batches = flow.batch(size, drop_remainder=True)
    return batches.to_iter_dataset(
        grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    ).mp_prefetch(workers)


random.seed(0)
np.random.seed(0)
