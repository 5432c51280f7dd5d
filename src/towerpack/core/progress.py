"""Progress of long work: a live bar on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from rich import progress as rich_progress

from towerpack.core import logger
from towerpack.core.console import lasting_console
from towerpack.core.progress_line import LineProgress

T = TypeVar("T")
PLAIN_INTERVAL = 30.0  # seconds between lines in a log file: enough to see life, not to drown it
DRAWINGS_PER_SECOND = 2  # of a bar: each takes time from the work it shows


class Progress:
    """A progress bar for `total` items (None: unknown), used as a context manager.

    On a terminal, or in a notebook with ipywidgets, it is drawn by rich; elsewhere a line is logged
    at most every 30 seconds and one at the end of work that took longer than that. `note` sets a
    short text shown behind the bar. With `samples`, so many in each item, their speed is shown as
    well.

    >>> with Progress(3, "reading") as bar:
    ...     for _ in range(3):
    ...         bar.update()
    """

    def __init__(
        self,
        total: int | None,
        description: str = "",
        unit: str = "it",
        samples: int | None = None,
    ):
        self.total, self.description = total, description
        self.unit, self.samples = unit, samples
        self.done = 0
        self._note = ""
        self._live: rich_progress.Progress | None = None
        self._started = self._last_line = time.monotonic()

    def __enter__(self) -> Progress:
        self._started = self._last_line = time.monotonic()
        if _can_move():
            self._live = LineProgress(
                *_columns(self.unit, self.samples),
                console=lasting_console(sys.stderr),
                transient=False,
                refresh_per_second=DRAWINGS_PER_SECOND,
                # What users print goes where they sent it, also when that is not this terminal.
                redirect_stdout=bool(sys.stdout and sys.stdout.isatty()),
            )
            self._task = self._live.add_task(self.description, total=self.total, note="")
            self._live.start()
        return self

    def update(self, count: int = 1) -> None:
        self.done += count
        if self._live:
            self._live.update(self._task, advance=count)
        elif time.monotonic() - self._last_line > PLAIN_INTERVAL:
            self._last_line = time.monotonic()
            logger.info(self._line())

    def note(self, text: str) -> None:
        self._note = text
        if self._live:
            self._live.update(self._task, note=text)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()
            self._live = None
        elif kind is None and time.monotonic() - self._started > PLAIN_INTERVAL:
            logger.info(self._line())

    def _line(self) -> str:
        seconds = time.monotonic() - self._started
        of = f"/{self.total}" if self.total is not None else ""
        rate = _rate(self.done / seconds, self.unit, self.samples) if seconds else ""
        return " ".join(filter(None, [self.description, f"{self.done}{of}", rate, self._note]))


def track(iterable: Iterable[T], total: int | None = None, description: str = "") -> Iterator[T]:
    """Iterates with a progress bar; the total is taken from `len` where there is one.

    >>> sum(track([1, 2, 3], description="adding"))
    6
    """
    if total is None:
        try:
            total = len(iterable)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            total = None
    with Progress(total, description) as bar:
        for item in iterable:
            yield item
            bar.update()


def is_live() -> bool:
    """Whether someone is looking: stderr is a terminal, or this is a notebook."""
    if logger.in_notebook():
        return True
    try:
        return bool(sys.stderr and sys.stderr.isatty())
    except ValueError:  # closed
        return False


def _can_move() -> bool:
    """Whether a bar can be drawn over itself: in a notebook rich does so by ipywidgets."""
    if logger.in_notebook():
        return importlib.util.find_spec("ipywidgets") is not None
    return is_live()


def _rate(speed: float, unit: str, samples: int | None) -> str:
    rate = f"{speed:.4g} {unit}/s"
    # Separated by thousands, as `.4g` would write 12345 samples per second as 1.234e+04.
    return f"{rate} {speed * samples:,.0f} samples/s" if samples else rate


def _columns(unit: str, samples: int | None) -> list[Any]:
    amount: list[Any]
    if unit == "B":
        amount = [rich_progress.DownloadColumn(), rich_progress.TransferSpeedColumn()]
    else:
        amount = [rich_progress.MofNCompleteColumn(), _RateColumn(unit, samples)]
    return [
        "{task.description}",
        rich_progress.BarColumn(bar_width=None),
        *amount,
        rich_progress.TimeRemainingColumn(elapsed_when_finished=True),
        "{task.fields[note]}",
    ]


class _RateColumn(rich_progress.ProgressColumn):
    def __init__(self, unit: str, samples: int | None):
        super().__init__()
        self.unit, self.samples = unit, samples

    def render(self, task: rich_progress.Task) -> str:
        speed = task.finished_speed or task.speed
        return _rate(speed, self.unit, self.samples) if speed else ""
