"""Speed and memory of the machine, once an epoch."""

from __future__ import annotations

import os
from pathlib import Path

from towerpack.callbacks.base import Callback
from towerpack.core import logger

GIGABYTE = 1024**3


class ThroughputTracker(Callback):
    """Puts the speed of training of each epoch, without the time spent in callbacks.

    As `Throughput (samples/sec)` if `samples_per_step` (over all towers) is given, else as
    `Throughput (steps/sec)`. No step is watched for it.

    >>> speed = ThroughputTracker(samples_per_step=128)
    """

    def __init__(self, samples_per_step: int | None = None):
        if samples_per_step is not None and samples_per_step <= 0:
            raise ValueError(f"expected samples_per_step > 0, received {samples_per_step}")
        self.samples_per_step = samples_per_step

    def _before_train(self) -> None:
        self._mark()

    def _before_epoch(self) -> None:
        self._mark()

    def _trigger(self) -> None:
        seconds = self.trainer.step_seconds - self._seconds
        steps = self.global_step - self._step
        if seconds <= 0 or not steps:
            return
        if self.samples_per_step is None:
            self.trainer.monitors.put_scalar("Throughput (steps/sec)", steps / seconds)
        else:
            speed = steps * self.samples_per_step / seconds
            self.trainer.monitors.put_scalar("Throughput (samples/sec)", speed)
        self._mark()

    def _mark(self) -> None:
        self._step, self._seconds = self.global_step, self.trainer.step_seconds


class HostMemoryTracker(Callback):
    """Puts the memory that is free on this machine, as `HostFreeMemory (GB)`."""

    chief_only = False

    def _before_train(self) -> None:
        logger.info("%.1f GB of host memory are free", free_memory() / GIGABYTE)

    def _trigger(self) -> None:
        self.trainer.monitors.put_scalar("HostFreeMemory (GB)", free_memory() / GIGABYTE)


def free_memory() -> int:
    """Bytes that programs can still get without swapping."""
    table = Path("/proc/meminfo")
    if table.exists():
        for line in table.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError) as error:
        raise OSError(
            "this system does not say how much memory is free (neither /proc/meminfo nor sysconf)"
        ) from error
