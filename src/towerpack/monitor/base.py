"""The base class of monitors, and `Monitors`, which passes everything to all of them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.core import logger
from towerpack.core.optional import require
from towerpack.core.similar import nearest_first
from towerpack.monitor.verdict import EpochTimes, verdict


@dataclass(frozen=True)
class RunInfo:
    """What a monitor receives at the start: where to write, and where the run begins.

    `starting_step` is the last step that is already done, 0 for a new run. `resumed` means that the
    run continues from its own checkpoint. An earlier process may have logged later steps than that;
    they will be logged again. `configuration` and `devices` are for people to read; their values
    must be JSON or have a readable `str`.
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
    def continues(self) -> bool:
        """Whether this run may have an earlier part."""
        return self.resumed or self.starting_epoch > 1

    def required_directory(self) -> Path:
        """The directory; raises ValueError if the run has none."""
        if self.directory is None:
            raise ValueError("expected a run with a directory, received one without")
        return self.directory

    def is_before(self, step: int, epoch: int) -> bool:
        """Whether that step belongs to the part of the run that is already done."""
        if not self.continues:
            return False
        if self.starting_step:
            return step <= self.starting_step
        return epoch < self.starting_epoch


class MonitorBase:
    """Receives everything that is logged through `Monitors`; override what you need.

    Calls come from the training thread, in order: `open` first, `flush` after every epoch, and at
    the end `end` and then `close`, once, also after an exception.
    """

    needs_directory = False
    """Whether it is left out of a run that has no directory."""

    def open(self, run: RunInfo) -> None: ...

    def history(self) -> Iterable[tuple[str, int, float]]:
        """(name, step, value) of the earlier scalars of the run; read once, after `open`."""
        return ()

    def process_scalar(self, name: str, value: float, step: int, epoch: int) -> None: ...

    def process_image(self, name: str, images: np.ndarray, step: int, epoch: int) -> None:
        """`images` is uint8 [N, height, width, 1, 3 or 4]."""

    def process_histogram(self, name: str, values: np.ndarray, step: int, epoch: int) -> None:
        """`values` are the numbers themselves, flat, of a numeric type of numpy."""

    def process_text(self, name: str, text: str, step: int, epoch: int) -> None:
        """`text` is Markdown."""

    def process_hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Values are bool, int, float or str. It is called before the first step."""

    def process_classes(self, name: str, counts: Mapping[str, int], note: str) -> None:
        """How many samples of a set, such as 'training', each class has; `note` is for people."""

    def process_graph(self, graph: Callable[[], bytes]) -> None:
        """`graph()` returns the serialized `GraphDef`; it may be slow, and may run in a thread."""

    def process_summary(self, serialized: bytes, step: int, epoch: int) -> None:
        """A serialized `Summary` of TensorBoard that holds no plain scalar."""

    def process_event(self, serialized: bytes, step: int, epoch: int) -> None:
        """A serialized `Event` of TensorBoard; its step and time are set."""

    def process_times(self, times: EpochTimes, verdict: str, step: int, epoch: int) -> None:
        """Where an epoch's time went; `verdict` is empty if that is not clear.

        The same numbers are also logged as scalars `time/...`.
        """

    def persist(self) -> None:
        """Writes what it has received, so that it survives the end of this process.

        It is called before every checkpoint, also in the middle of an epoch, because a run that
        resumes there does not log earlier steps again.
        """

    def flush(self, step: int, epoch: int) -> None: ...

    def end(self, error: BaseException | None) -> None:
        """The run is over; `error` is the exception that ended it, if any."""

    def close(self) -> None: ...


TOWER_PREFIX = re.compile(r"tower\d+/")
SUMMARY_SUFFIX = "-summary"
NAMED_FAILURES = 3  # failed writes that are each logged; after them, every hundredth is
FAILURES_PER_LINE = 100


class Monitors:
    """`trainer.monitors`: passes everything to all monitors, and keeps the history of scalars.

    Not thread-safe: it belongs to the training thread. An OSError of a monitor (a full disk, a
    network) is logged and counted in `failures`; the run continues.

    >>> monitors = Monitors([])
    >>> monitors.at(step=10, epoch=1)
    >>> monitors.put_scalar("cost", 0.5)
    >>> monitors.get_latest("cost"), monitors.get_history("cost")
    (0.5, [(10, 0.5)])
    """

    def __init__(self, monitors: Sequence[MonitorBase]):
        for monitor in monitors:
            if not isinstance(monitor, MonitorBase):
                raise TypeError(f"expected monitors, received {monitor!r}")
        self.monitors = list(monitors)
        self._active = [monitor for monitor in monitors if not monitor.needs_directory]
        self.step = self.epoch = 0
        self._history: dict[str, list[tuple[int, float]]] = {}
        self._put_before: set[str] = set()  # names logged at the step where the run resumed
        self._resumed_at: int | None = None
        self.failures = 0
        """How often a monitor could not write."""

    def _each(self, call: Callable[[MonitorBase], None]) -> None:
        """Calls each monitor. A failing disk or network does not end the run."""
        for monitor in self._active:
            try:
                call(monitor)
            except OSError as error:
                self.failures += 1
                if self.failures <= NAMED_FAILURES or self.failures % FAILURES_PER_LINE == 0:
                    logger.error(
                        "%s could not write (failure %d of this run's monitors); training "
                        "continues, and the monitor will try again: %s",
                        type(monitor).__name__,
                        self.failures,
                        error,
                    )

    def open(self, run: RunInfo) -> None:
        """Opens every monitor and reads the history of a resumed run from the first that has it."""
        if run.directory is not None:
            self._active = self.monitors
        self._each(lambda monitor: monitor.open(run))
        for monitor in self._active:
            if not self._history:
                for name, step, value in monitor.history():
                    self._history.setdefault(name, []).append((step, value))
        if run.resumed:
            self._resumed_at = run.starting_step
            latest = {name: points[-1][0] for name, points in self._history.items()}
            self._put_before = {name for name in latest if latest[name] == run.starting_step}

    def at(self, step: int, epoch: int) -> None:
        """Sets the step and the epoch of the following values."""
        self.step, self.epoch = step, epoch

    def put_scalar(self, name: str, value: float) -> None:
        """Puts a number, unless it was logged at the same step before the run was resumed."""
        if self.step == self._resumed_at and name in self._put_before:
            return
        number = float(value)
        self._history.setdefault(name, []).append((self.step, number))
        self._each(lambda m: m.process_scalar(name, number, self.step, self.epoch))

    def has_put(self, name: str) -> bool:
        """Whether this scalar has a value at the current step."""
        return name in self._history and self._history[name][-1][0] == self.step

    def put_image(self, name: str, image: np.ndarray) -> None:
        """Puts a picture HW, HWC or NHWC with values 0..255."""
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
        self._each(lambda m: m.process_image(name, images, self.step, self.epoch))

    def put_histogram(self, name: str, values: np.ndarray) -> None:
        """Puts the distribution of any numbers."""
        flat = np.asarray(values).reshape(-1)
        if flat.dtype.kind not in "biuf":  # bfloat16, or Python's own numbers
            flat = flat.astype(np.float64)
        self._each(lambda m: m.process_histogram(name, flat, self.step, self.epoch))

    def put_text(self, name: str, text: str) -> None:
        """Puts a text in Markdown."""
        self._each(lambda m: m.process_text(name, text, self.step, self.epoch))

    def put_hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Puts the settings of this run. Values other than numbers become str."""
        plain = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in values.items()
        }
        self._each(lambda m: m.process_hyperparameters(plain))

    def put_classes(self, name: str, counts: Mapping[Any, int], note: str = "") -> None:
        """Puts how many samples of a set, such as 'training', each class has."""
        plain = {str(each): int(count) for each, count in counts.items()}
        self._each(lambda m: m.process_classes(name, plain, note))

    def put_graph(self, graph: bytes | Callable[[], bytes]) -> None:
        """Puts a serialized `GraphDef`, or a function that returns it, which a thread may call."""
        make = graph if callable(graph) else lambda: graph
        self._each(lambda m: m.process_graph(make))

    def put_summary(self, summary: Any) -> None:
        """Puts a `Summary` of TensorBoard, as message or serialized. Its scalars become scalars.

        Tags lose `towerN/` and a trailing `-summary`.
        """
        message = require("tensorboard.compat.proto.summary_pb2", extra="tf").Summary
        # The message may be of TensorFlow's class of the same name; both have the same bytes.
        serialized = summary if isinstance(summary, bytes) else summary.SerializeToString()
        for value in message.FromString(serialized).value:
            value.tag = TOWER_PREFIX.sub("", value.tag).removesuffix(SUMMARY_SUFFIX)
            if value.HasField("simple_value"):
                self.put_scalar(value.tag, value.simple_value)
                continue
            self._put_summary(message(value=[value]).SerializeToString())

    def _put_summary(self, single: bytes) -> None:
        self._each(lambda m: m.process_summary(single, self.step, self.epoch))

    def put_event(self, event: Any) -> None:
        """Puts an `Event` of TensorBoard, as message or serialized; sets its step and time."""
        message = require("tensorboard.compat.proto.event_pb2", extra="tf").Event
        own = message.FromString(event if isinstance(event, bytes) else event.SerializeToString())
        own.step, own.wall_time = self.step, time.time()
        serialized = own.SerializeToString()
        self._each(lambda m: m.process_event(serialized, self.step, self.epoch))

    def put_times(self, times: EpochTimes) -> str:
        """Puts the times of an epoch as scalars `time/...` in seconds. Returns the verdict."""
        line = verdict(times)
        for name, seconds in (times.scalars() | times.rank_scalars()).items():
            self.put_scalar(f"time/{name}", seconds)
        self._each(lambda m: m.process_times(times, line, self.step, self.epoch))
        return line

    def get_latest(self, name: str) -> float:
        return self.get_history(name)[-1][1]

    def get_history(self, name: str) -> list[tuple[int, float]]:
        """[(global step, value)], oldest first."""
        if name not in self._history:
            known = nearest_first(name, self._history)
            raise KeyError(f"nothing was logged as {name!r}; known are {known}")
        return self._history[name]

    def persist(self) -> None:
        """Makes everything logged so far survive this process. Called before a checkpoint."""
        self._each(lambda m: m.persist())

    def flush(self) -> None:
        self._each(lambda m: m.flush(self.step, self.epoch))

    def close(self, error: BaseException | None = None) -> None:
        """Ends and closes every monitor, and then raises the first failure.

        An OSError is logged and counted instead. `error` is the exception that ended the run, by
        default the one that is being handled, if any.
        """
        error = error or sys.exception()
        failure: Exception | None = None

        def attempt(action: Callable[[], None]) -> None:
            nonlocal failure
            try:
                action()
            except OSError:
                raise
            except Exception as problem:  # noqa: BLE001 (raised below, after the others)
                failure = failure or problem

        self._each(lambda monitor: attempt(lambda: monitor.end(error)))
        self._each(lambda monitor: attempt(monitor.close))
        if self.failures:
            logger.error("monitors could not write %d times in this run", self.failures)
        if failure:
            raise failure
