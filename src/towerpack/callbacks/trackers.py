"""Callbacks that log the speed, memory and load of the (chief's) machine once an epoch."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import numpy as np

from towerpack._tensorflow import tf
from towerpack.callbacks.base import Callback
from towerpack.core import logger
from towerpack.core.optional import require

GIGABYTE = 1024**3
SAMPLE_SECONDS = 1.0  # the driver averages over about one second


class ThroughputTracker(Callback):
    """Logs the speed of training in each epoch, without the time spent in callbacks.

    As `Throughput (samples/sec)` if `samples_per_step` (over all towers of all ranks) is given,
    else as `Throughput (steps/sec)`. It does not observe single steps.

    >>> speed = ThroughputTracker(samples_per_step=128)
    """

    def __init__(self, samples_per_step: int | None = None):
        self.samples_per_step = samples_per_step

    def _before_train(self) -> None:
        self._mark()

    def _trigger(self) -> None:
        seconds = self.trainer.step_seconds - self._seconds
        steps = self.global_step - self._step
        if seconds > 0 and steps:
            unit = "steps" if self.samples_per_step is None else "samples"
            speed = steps * (self.samples_per_step or 1) / seconds
            self.trainer.monitors.put_scalar(f"Throughput ({unit}/sec)", speed)
            self._mark()

    def _mark(self) -> None:
        self._step, self._seconds = self.global_step, self.trainer.step_seconds


class HostMemoryTracker(Callback):
    """Logs the free memory of this machine, as `HostFreeMemory (GB)`."""

    def _before_train(self) -> None:
        logger.info("%.1f GB of host memory is free", free_memory() / GIGABYTE)

    def _trigger(self) -> None:
        self.trainer.monitors.put_scalar("HostFreeMemory (GB)", free_memory() / GIGABYTE)


def free_memory() -> int:
    """The bytes that programs can still allocate without swapping. Linux only."""
    table = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(table["MemAvailable"].removesuffix("kB")) * 1024


class GPUUtilizationTracker(Callback):
    """Logs the average load of GPUs during each epoch, as `GPUUtil/<number>` in percent.

    A thread queries the driver (through nvidia-ml-py) once a second. `devices` are numbers of
    physical GPUs; by default those of CUDA_VISIBLE_DEVICES, or all. It raises if there is no GPU.
    """

    def __init__(self, devices: Sequence[int] | None = None):
        self.devices = None if devices is None else list(devices)
        self._sampling: Future[list[float]] | None = None

    def _before_train(self) -> None:
        nvml = require("pynvml", extra="gpu")
        try:
            nvml.nvmlInit()
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise RuntimeError(
                f"GPUUtilizationTracker needs an NVIDIA GPU and its driver: {error}. "
                "Remove the callback on this machine"
            ) from error
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count))))
        self._numbers = self.devices or [int(n) for n in visible.split(",") if n.strip().isdigit()]
        if not self._numbers or max(self._numbers) >= count:
            raise ValueError(f"expected GPUs of 0 to {count - 1}, received {self._numbers}")
        self._nvml = nvml

    def _before_epoch(self) -> None:
        self._epoch_ended = threading.Event()
        thread = ThreadPoolExecutor(1, "GPUUtilizationTracker")
        self._sampling = thread.submit(self._mean_loads)
        thread.shutdown(wait=False)  # it ends with its only task

    def _mean_loads(self) -> list[float]:
        """The mean load of each GPU until the epoch ends. Runs in a thread."""
        nvml = self._nvml
        handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in self._numbers]
        samples: list[list[float]] = []
        while not samples or not self._epoch_ended.wait(SAMPLE_SECONDS):
            samples.append([nvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in handles])
        return np.mean(samples, axis=0).tolist()

    def _after_epoch(self) -> None:
        for number, load in zip(self._numbers, self._stop(), strict=True):
            self.trainer.monitors.put_scalar(f"GPUUtil/{number}", load)

    def _after_train(self) -> None:
        if self._sampling is not None:  # training ended within an epoch
            self._stop()

    def _stop(self) -> list[float]:
        sampling, self._sampling = self._sampling, None
        self._epoch_ended.set()
        return [] if sampling is None else sampling.result()


class PeakMemoryTracker(Callback):
    """Logs the peak memory of TensorFlow on GPUs in each epoch, as `PeakMemory(MB)/gpu:<n>`.

    `devices` are TensorFlow's numbers of GPUs.
    """

    def __init__(self, devices: Sequence[int | str] = (0,)):
        self.devices = [d if isinstance(d, str) else f"GPU:{d}" for d in devices]

    def _before_train(self) -> None:
        present = [f"GPU:{n}" for n in range(len(tf.config.list_logical_devices("GPU")))]
        missing = [d for d in self.devices if d.strip("/").upper() not in present]
        if missing:
            raise RuntimeError(
                f"{type(self).__name__} needs GPUs: expected {missing}, but TensorFlow sees "
                f"{present or 'none'}. Remove the callback on this machine"
            )

    def _trigger(self) -> None:
        for device in self.devices:
            name = device.strip("/")
            peak = tf.config.experimental.get_memory_info(name)["peak"]
            self.trainer.monitors.put_scalar(f"PeakMemory(MB)/{name.lower()}", peak / 1024**2)
            tf.config.experimental.reset_memory_stats(name)


class EstimatedTimeLeft(Callback):
    """Logs after each epoch how long the remaining ones will take.

    The estimate is the median (or the mean) time of the last epochs, including callbacks.
    """

    def __init__(self, last_k_epochs: int = 5, median: bool = True):
        if last_k_epochs < 1:
            raise ValueError(f"expected at least one epoch, received {last_k_epochs}")
        self.median = median
        self._times: deque[float] = deque(maxlen=last_k_epochs)

    def _before_train(self) -> None:
        self._times.clear()
        self._last = time.monotonic()

    def _trigger_epoch(self) -> None:
        now = time.monotonic()
        self._times.append(now - self._last)
        self._last = now
        left = self.trainer.max_epoch - self.epoch_num
        if left > 0:
            each = float(np.median(self._times) if self.median else np.mean(self._times))
            logger.info("estimated time left: %s", timedelta(seconds=round(each * left)))
