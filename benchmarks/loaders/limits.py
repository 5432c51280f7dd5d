"""What no loader can beat: the same work without transport, a bare ring, plain numpy, a bare loop.

- W1, W4: two independent processes that do the work and throw it away.
- W2, W2m: two processes that write samples into a bare ring of shared memory; the reader touches
  nothing (W2), or copies each into its batch (W2m).
- W3: numpy indexing. W3f: a Python loop in one process.
"""

import mmap
import multiprocessing
import os
import random
import time

import lmdb
import numpy as np

from loaders import work

WORKLOADS = ["W1", "W1db", "W2", "W2m", "W3", "W3f", "W4"]
SLOTS = 4
context = multiprocessing.get_context("fork")


def samples(workload, directory):
    """One sample after another, for ever."""
    if workload == "W1":
        files = work.files_of(directory)
        while True:
            random.shuffle(files)
            for path in files:
                yield work.load_file(path)
    if workload == "W1db":
        database = lmdb.open(directory + "/lmdb", readonly=True, lock=False)
        while True:
            for index in np.random.permutation(work.SAMPLES):
                with database.begin() as transaction:
                    yield work.load_bytes(transaction.get(b"%08d" % index))
    images, _ = work.tiny_images()
    while True:
        for index in np.random.permutation(len(images)):
            yield work.pad_crop_flip_normalize(images[index])


def independent(workload, directory, counter, stop):
    random.seed(os.getpid())  # a fork's own numbers: else both would do the same at the same time
    np.random.seed(os.getpid())
    batch, size = None, work.BATCH[workload]
    source = samples(workload, directory)
    while not stop.is_set():
        for row in range(size):
            sample = next(source)
            if batch is None:
                batch = np.empty((size, *sample.shape), sample.dtype)
            batch[row] = sample
        counter.value += size


class Independent:
    """Two processes that count; every item is as long as what they did since the last look."""

    def __init__(self, workload, directory):
        self.stop = context.Event()
        self.counters = [context.Value("q", 0, lock=False) for _ in range(2)]
        self.processes = [
            context.Process(
                target=independent, args=(workload, directory, counter, self.stop), daemon=True
            )
            for counter in self.counters
        ]
        for process in self.processes:
            process.start()

    def __iter__(self):
        seen = 0
        while True:
            time.sleep(0.05)
            done = sum(counter.value for counter in self.counters)
            if done > seen:
                yield range(done - seen)
            seen = done

    def close(self):
        self.stop.set()
        for process in self.processes:
            process.join()


def fill(memory, size, free, full):
    rows = np.frombuffer(memory, np.uint8).reshape(SLOTS, size, *work.INSTANT.shape)
    while True:
        slot = os.read(free, 1)
        if not slot:
            return
        for row in range(size):
            rows[slot[0], row] = work.INSTANT
        os.write(full, slot)


class Ring:
    """The least that shared memory needs: slots, and a byte in a pipe for each hand-over."""

    def __init__(self, copy):
        self.copy, self.size = copy, work.BATCH["W2"]
        self.workers = []
        for _ in range(2):
            memory = mmap.mmap(-1, SLOTS * self.size * work.INSTANT.nbytes)
            free_out, free_in = os.pipe()
            full_out, full_in = os.pipe()
            process = context.Process(target=self._work, args=(memory, free_out, free_in, full_in))
            process.start()
            os.close(free_out)
            rows = np.frombuffer(memory, np.uint8).reshape(SLOTS, self.size, *work.INSTANT.shape)
            os.write(free_in, bytes(range(SLOTS)))
            self.workers.append((process, rows, free_in, full_out))

    def _work(self, memory, free_out, free_in, full_in):
        os.close(free_in)
        fill(memory, self.size, free_out, full_in)

    def __iter__(self):
        while True:
            for _, rows, free, full in self.workers:
                slot = os.read(full, 1)
                batch = rows[slot[0]]
                if self.copy:
                    batch = np.empty_like(batch)
                    for row in range(self.size):
                        batch[row] = rows[slot[0], row]
                yield batch
                os.write(free, slot)

    def close(self):
        for process, _, free, full in self.workers:
            process.kill()
            process.join()
            os.close(free)
            os.close(full)


class Indexing:
    def __init__(self, func):
        self.x, self.y = work.small_arrays()
        self.func = func

    def __iter__(self):
        size = work.BATCH["W3"]
        order = np.random.default_rng(0).permutation(len(self.x))
        for start in range(0, len(order) - size + 1, size):
            yield self.func(self.x, self.y, order[start : start + size])


def index(x, y, rows):
    return x[rows], y[rows]


def loop(x, y, rows):
    made = [work.per_sample(x[row], y[row]) for row in rows]
    return tuple(np.stack(column) for column in zip(*made, strict=True))


def open_flow(workload, directory):
    if workload in ("W2", "W2m"):
        return Ring(copy=workload == "W2m")
    if workload in ("W3", "W3f"):
        return Indexing(index if workload == "W3" else loop)
    return Independent(workload, directory)
