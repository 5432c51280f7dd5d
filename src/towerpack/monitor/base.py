"""What a monitor is: a place where numbers and pictures of a run go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class RunInfo:
    """What a monitor learns at the start: where to write, and where the run begins."""

    directory: Path | None
    starting_epoch: int = 1


class MonitorBase:
    """Receives everything that is put to the `Monitors`; override what you want.

    Calls come from the training thread, in order. `open` precedes all others; `flush` comes at the
    end of every epoch; `close` comes once, also after an exception.
    """

    def open(self, run: RunInfo) -> None: ...

    def process_scalar(self, name: str, value: float, step: int, epoch: int) -> None: ...

    def process_image(self, name: str, images: np.ndarray, step: int, epoch: int) -> None:
        """`images` is uint8 [N, height, width, 1, 3 or 4]."""

    def process_histogram(self, name: str, values: np.ndarray, step: int, epoch: int) -> None:
        """`values` are the numbers themselves, flat."""

    def process_summary(self, serialized: bytes, step: int, epoch: int) -> None:
        """A serialized `Summary` of TensorBoard that holds no plain scalar."""

    def flush(self, step: int, epoch: int) -> None: ...

    def close(self) -> None: ...
