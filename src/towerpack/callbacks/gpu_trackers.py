"""Load and memory of GPUs, once an epoch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.callbacks.base import Callback
from towerpack.core.optional import require
from towerpack.core.threads import StoppableThread

SAMPLE_SECONDS = 1.0  # the driver itself averages over about as long


class GPUUtilizationTracker(Callback):
    """Puts the average load of GPUs during each epoch, as `GPUUtil/<number>` in percent.

    A thread asks the driver (through nvidia-ml-py) once a second. `devices` are numbers of physical
    GPUs; by default those of CUDA_VISIBLE_DEVICES, or all. Without a GPU it is an error to train
    with it.
    """

    chief_only = False

    def __init__(self, devices: Sequence[int] | None = None):
        self.devices = None if devices is None else list(devices)
        self._sampler: _Sampler | None = None

    def _before_train(self) -> None:
        nvml = require("pynvml", extra="gpu")
        try:
            nvml.nvmlInit()
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise RuntimeError(
                f"GPUUtilizationTracker needs an NVIDIA GPU and its driver: {error}. "
                "Leave the callback out on this machine"
            ) from error
        self._numbers = self._wanted(count)
        self._nvml = nvml

    def _wanted(self, count: int) -> list[int]:
        if self.devices is not None:
            wanted = self.devices
        else:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            numbers = [n for n in (visible or "").split(",") if n.strip().isdigit()]
            wanted = [int(n) for n in numbers] if visible is not None else list(range(count))
        if not wanted or max(wanted) >= count:
            raise ValueError(f"expected GPUs of 0 to {count - 1}, received {wanted}")
        return wanted

    def _before_epoch(self) -> None:
        handles = [self._nvml.nvmlDeviceGetHandleByIndex(number) for number in self._numbers]
        self._sampler = _Sampler(self._nvml, handles)
        self._sampler.start()

    def _after_epoch(self) -> None:
        if self._sampler is None:
            return
        sampler, self._sampler = self._sampler, None
        for number, load in zip(self._numbers, sampler.finish(), strict=True):
            self.trainer.monitors.put_scalar(f"GPUUtil/{number}", load)

    def _after_train(self) -> None:
        if self._sampler is not None:
            self._sampler.finish()
            self._sampler = None


class _Sampler(StoppableThread):
    def __init__(self, nvml: Any, handles: list[Any]):
        super().__init__(name="GPUUtilizationTracker", daemon=True)
        self._nvml, self._handles = nvml, handles
        self._samples: list[list[float]] = []
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            while True:
                self._samples.append(
                    [float(self._nvml.nvmlDeviceGetUtilizationRates(h).gpu) for h in self._handles]
                )
                if self._stop_event.wait(SAMPLE_SECONDS):
                    return
        except Exception as error:  # noqa: BLE001 (raised by `finish`)
            self._failure = error

    def finish(self) -> list[float]:
        """Stops; the mean load of each GPU."""
        self.stop()
        self.join()
        if self._failure is not None:
            raise self._failure
        return [float(load) for load in np.mean(self._samples, axis=0)]


class PeakMemoryTracker(Callback):
    """Puts the most memory that TensorFlow held on GPUs in each epoch: `PeakMemory(MB)/gpu:<n>`.

    `devices` are numbers of GPUs as TensorFlow counts them.
    """

    chief_only = False

    def __init__(self, devices: Sequence[int | str] = (0,)):
        self.devices = [d if isinstance(d, str) else f"GPU:{d}" for d in devices]

    def _before_train(self) -> None:
        present = [f"GPU:{n}" for n in range(len(tf.config.list_logical_devices("GPU")))]
        missing = [d for d in self.devices if d.strip("/").upper() not in present]
        if missing:
            raise RuntimeError(
                f"{type(self).__name__} needs GPUs: expected {missing}, but TensorFlow sees "
                f"{present or 'none'}. Leave the callback out on this machine"
            )

    def _trigger(self) -> None:
        for device in self.devices:
            name = device.strip("/")
            peak = tf.config.experimental.get_memory_info(name)["peak"]
            self.trainer.monitors.put_scalar(f"PeakMemory(MB)/{name.lower()}", peak / 1024**2)
            tf.config.experimental.reset_memory_stats(name)


GPUMemoryTracker = PeakMemoryTracker
