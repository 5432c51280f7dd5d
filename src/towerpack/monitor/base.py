"""What a monitor is: a place where numbers and pictures of a run go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.monitor.verdict import EpochTimes


@dataclass(frozen=True)
class RunInfo:
    """What a monitor learns at the start: where to write, and where the run begins.

    `starting_step` is the last step that is done already: 0 for a run from scratch. `resumed` says
    that the run goes on from its own checkpoint: what monitors hold of later steps, done by an
    earlier process after that checkpoint, is about to come again. `configuration` and `devices` are
    for people to read; whatever is in them must be JSON or have a telling `str`.
    """

    directory: Path | None
    starting_epoch: int = 1
    starting_step: int = 0
    resumed: bool = False
    steps_per_epoch: int = 0
    max_epoch: int = 0
    configuration: Mapping[str, Any] = field(default_factory=dict)
    devices: tuple[str, ...] = ()

    @property
    def goes_on(self) -> bool:
        """Whether there may be an earlier part of this run."""
        return self.resumed or self.starting_epoch > 1

    def is_before(self, step: int, epoch: int) -> bool:
        """Whether something logged at that time belongs to the part that is done already."""
        if not self.goes_on:
            return False
        if self.starting_step:
            return step <= self.starting_step
        return epoch < self.starting_epoch


class MonitorBase:
    """Receives everything that is put to the `Monitors`; override what you want.

    Calls come from the training thread, in order. `open` precedes all others; `flush` comes at the
    end of every epoch; `end` and then `close` come once, also after an exception.
    """

    def open(self, run: RunInfo) -> None: ...

    def history(self) -> Iterable[tuple[str, int, float]]:
        """(name, step, value) of the scalars of the run's earlier part; asked once after `open`."""
        return ()

    def process_scalar(self, name: str, value: float, step: int, epoch: int) -> None: ...

    def process_image(self, name: str, images: np.ndarray, step: int, epoch: int) -> None:
        """`images` is uint8 [N, height, width, 1, 3 or 4]."""

    def process_histogram(self, name: str, values: np.ndarray, step: int, epoch: int) -> None:
        """`values` are the numbers themselves, flat, of a numeric type of numpy."""

    def process_text(self, name: str, text: str, step: int, epoch: int) -> None:
        """`text` is Markdown."""

    def process_hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Values are bool, int, float or str. Comes before the first step."""

    def process_graph(self, graph: Callable[[], bytes]) -> None:
        """`graph()` makes the serialized `GraphDef`; it may take long, and may run in a thread."""

    def process_summary(self, serialized: bytes, step: int, epoch: int) -> None:
        """A serialized `Summary` of TensorBoard that holds no plain scalar."""

    def process_event(self, serialized: bytes, step: int, epoch: int) -> None:
        """A serialized `Event` of TensorBoard; its step and time are set."""

    def process_times(self, times: EpochTimes, verdict: str, step: int, epoch: int) -> None:
        """Where an epoch's time went; `verdict` is empty if that is not clear.

        Its numbers come as scalars `time/...` as well.
        """

    def persist(self) -> None:
        """Puts what it has where the end of this process does not reach it.

        Comes before every checkpoint, also in the middle of an epoch: a run that is taken up there
        does not put again what came before.
        """

    def flush(self, step: int, epoch: int) -> None: ...

    def end(self, error: BaseException | None) -> None:
        """The run is over, by this exception if there is one."""

    def close(self) -> None: ...
