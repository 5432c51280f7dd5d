"""torch's DataLoader: two persistent workers, whole batches by `__getitems__` where that helps."""

import lmdb
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from loaders import work

torch.set_num_threads(1)
WORKLOADS = ["W1", "W1db", "W2", "W2m", "W3", "W3f", "W4"]


class Files(Dataset):
    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return work.load_file(self.files[index])


class Database(Dataset):
    def __init__(self, path):
        self.path, self.database = path, None

    def __len__(self):
        return work.SAMPLES

    def __getitem__(self, index):
        if self.database is None:
            self.database = lmdb.open(self.path, readonly=True, lock=False)
        with self.database.begin() as transaction:
            return work.load_bytes(transaction.get(b"%08d" % index))


class Instant(Dataset):
    def __len__(self):
        return work.INSTANT_SAMPLES

    def __getitem__(self, index):
        return work.INSTANT


class Rows(Dataset):
    def __init__(self):
        self.x, self.y = work.small_arrays()

    def __len__(self):
        return len(self.x)

    def __getitems__(self, indices):
        return torch.from_numpy(self.x[indices]), torch.from_numpy(self.y[indices])


class MappedRows(Rows):
    def __getitems__(self, indices):
        rows = [work.per_sample(self.x[i], self.y[i]) for i in indices]
        return tuple(torch.from_numpy(np.stack(column)) for column in zip(*rows, strict=True))


class Tiny(Dataset):
    def __init__(self):
        self.images, self.labels = work.tiny_images()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return work.pad_crop_flip_normalize(self.images[index]), self.labels[index]


def open_flow(workload, directory):
    options = {"batch_size": work.BATCH[workload], "shuffle": True, "drop_last": True}
    workers = {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4}
    whole = {"collate_fn": lambda batch: batch}
    if workload == "W1":
        return DataLoader(Files(work.files_of(directory)), **options, **workers)
    if workload == "W1db":
        return DataLoader(Database(directory + "/lmdb"), **options, **workers)
    if workload == "W2":
        return DataLoader(Instant(), **options, **workers)
    if workload == "W2m":
        return Singly(DataLoader(Instant(), batch_size=None, **workers))
    if workload == "W3":
        return DataLoader(Rows(), **options, **whole)
    if workload == "W3f":
        return DataLoader(MappedRows(), **options, **workers, **whole)
    return DataLoader(Tiny(), **options, **workers)


class Singly:
    """Samples come one by one and are stacked here."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        rows = []
        for row in self.loader:
            rows.append(row)
            if len(rows) == work.BATCH["W2m"]:
                yield np.stack(rows)
                rows = []
