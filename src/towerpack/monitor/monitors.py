"""All monitors of a run behind one face."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from towerpack.core.optional import require
from towerpack.monitor.base import MonitorBase, RunInfo


class Monitors:
    """`trainer.monitors`: takes scalars and pictures, keeps the scalars' history, passes all on."""

    def __init__(self, monitors: Sequence[MonitorBase]):
        for monitor in monitors:
            if not isinstance(monitor, MonitorBase):
                raise TypeError(f"expected monitors, received {monitor!r}")
        self.monitors = list(monitors)
        self.step = self.epoch = 0
        self._history: dict[str, list[tuple[int, float]]] = {}

    def open(self, run: RunInfo) -> None:
        for monitor in self.monitors:
            monitor.open(run)

    def at(self, step: int, epoch: int) -> None:
        """Says when what follows is put."""
        self.step, self.epoch = step, epoch

    def put_scalar(self, name: str, value: float) -> None:
        number = float(value)
        self._history.setdefault(name, []).append((self.step, number))
        for monitor in self.monitors:
            monitor.process_scalar(name, number, self.step, self.epoch)

    def put_image(self, name: str, image: np.ndarray) -> None:
        """A picture HW, HWC or NHWC with values 0..255."""
        images = np.asarray(image)
        if images.ndim == 2:
            images = images[None, :, :, None]
        elif images.ndim == 3:
            images = images[None]
        if images.ndim != 4 or images.shape[-1] not in (1, 3, 4):
            raise ValueError(
                "expected a picture of shape HW, HWC or NHWC with 1, 3 or 4 channels, received "
                f"{np.asarray(image).shape}"
            )
        if images.dtype != np.uint8:
            images = np.clip(images, 0, 255).astype(np.uint8)
        for monitor in self.monitors:
            monitor.process_image(name, images, self.step, self.epoch)

    def put_histogram(self, name: str, values: np.ndarray) -> None:
        """The distribution of any numbers."""
        flat = np.asarray(values, np.float64).reshape(-1)
        for monitor in self.monitors:
            monitor.process_histogram(name, flat, self.step, self.epoch)

    def put_summary(self, serialized: bytes) -> None:
        """A serialized `Summary` of TensorBoard; its scalars go where scalars go."""
        summary_pb2 = require("tensorboard.compat.proto.summary_pb2", extra="tf")
        summary = summary_pb2.Summary.FromString(serialized)
        for value in summary.value:
            if value.HasField("simple_value"):
                self.put_scalar(value.tag, value.simple_value)
                continue
            single = summary_pb2.Summary(value=[value]).SerializeToString()
            for monitor in self.monitors:
                monitor.process_summary(single, self.step, self.epoch)

    def get_latest(self, name: str) -> float:
        return self.get_history(name)[-1][1]

    def get_history(self, name: str) -> list[tuple[int, float]]:
        """[(global step, value)], oldest first."""
        if name not in self._history:
            raise KeyError(f"nothing was logged as {name!r}; known are {sorted(self._history)}")
        return self._history[name]

    def flush(self) -> None:
        for monitor in self.monitors:
            monitor.flush(self.step, self.epoch)

    def close(self) -> None:
        """Closes every monitor; the first error is raised after all have had their turn."""
        failure: Exception | None = None
        for monitor in self.monitors:
            try:
                monitor.close()
            except Exception as error:  # noqa: BLE001 (raised below, after the others)
                failure = failure or error
        if failure:
            raise failure
