"""What every contender trains: the shapes, the data and the settings, in plain numpy."""

import os
from typing import NamedTuple

import numpy as np

CORES = min(2, len(os.sched_getaffinity(0)))  # one for each rank of several
CLASSES = 10
START_EPOCHS = 2  # of a script whose starting time and memory are measured
FUSED = 32  # steps in one call, where a contender runs many


class Task(NamedTuple):
    """A network by its name, with what its training needs. An epoch is the whole data, once."""

    words: str
    shape: tuple
    batch: int
    steps: int  # of an epoch

    @property
    def samples(self):
        return self.batch * self.steps


TASKS = {
    "M1": Task("LeNet 28x28x1, batch 128, Adam", (28, 28, 1), 128, 64),
    "M2": Task("pre-activation ResNet-20 32x32x3, batch 128, momentum", (32, 32, 3), 128, 16),
    "M3": Task("784-128-10, batch 32, Adam", (784,), 32, 58 * FUSED),
}
ADAM_RATE, MOMENTUM_RATE, MOMENTUM = 1e-3, 0.01, 0.9
DROPOUT = 0.5
NORM_MOMENTUM, NORM_EPSILON = 0.9, 1e-5

LENET_FILTERS, LENET_UNITS = 32, 512
RESNET_FILTERS, RESNET_BLOCKS = (16, 32, 64), 3
DENSE_UNITS = 128


def arrays(model):
    """Images (or rows) as float32 and labels as int32: noise, but with something to learn."""
    task = TASKS[model]
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, task.samples).astype(np.int32)
    images = rng.standard_normal((task.samples, *task.shape), np.float32)
    images += (labels / CLASSES).reshape(-1, *[1] * len(task.shape)).astype(np.float32)
    return images, labels


def resnet_stages():
    """The blocks of M2: (filters, stride) of each, in order."""
    for stage, filters in enumerate(RESNET_FILTERS):
        for block in range(RESNET_BLOCKS):
            yield filters, 2 if stage and not block else 1


def peak_memory():
    """The most memory that this process has ever used, in MB."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
