"""webdataset: tar shards, two workers of its WebLoader."""

import os
import tarfile

import webdataset

from loaders import work

WORKLOADS = ["W1"]
SHARDS = 8


def shards_of(directory):
    """The JPEG files as tar shards, made once."""
    paths = [os.path.join(directory, f"shard-{number}.tar") for number in range(SHARDS)]
    if not os.path.exists(paths[-1]):
        files = work.files_of(directory)[: work.IMAGES]
        for number, path in enumerate(paths):
            with tarfile.open(path + ".part", "w") as shard:
                for file in files[number::SHARDS]:
                    shard.add(file, os.path.basename(file))
            os.replace(path + ".part", path)
    return paths


def first(sample):
    return work.load_bytes(sample["jpg"])


def open_flow(workload, directory):
    flow = (
        webdataset.WebDataset(shards_of(directory), shardshuffle=SHARDS)
        .shuffle(100)
        .repeat()
        .map(first)
    )
    flow = flow.batched(work.BATCH[workload], partial=False)
    return webdataset.WebLoader(flow, batch_size=None, num_workers=2, persistent_workers=True)
