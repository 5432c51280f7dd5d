"""Progress of long work: a live bar on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import IO, Any, TypeVar

from rich import progress as rich_progress
from rich.cells import cell_len
from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.segment import Segment, Segments
from rich.text import Text

from towerpack.core import logger

T = TypeVar("T")
PLAIN_INTERVAL = 30.0  # seconds between plain lines, so that they do not fill a log file
DRAWINGS_PER_SECOND = 2  # each takes time from the work
SHORTEST_BAR = 4  # characters


class Progress:
    """A progress bar for `total` items (None: unknown), used as a context manager.

    On a terminal, or in a notebook with ipywidgets, rich draws it. Elsewhere, a line is logged at
    most every 30 seconds, and at the end of work that took longer than that. `note` sets a short
    text that is shown after the bar. `samples` is the number of samples in each item; with it, the
    number of samples per second is shown as well.

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
            self._live = _LineProgress(
                *_columns(self.unit, self.samples),
                console=lasting_console(sys.stderr),
                refresh_per_second=DRAWINGS_PER_SECOND,
                # Output that a user redirected to a file must not appear on this terminal.
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
    """Iterates with a progress bar. The default total is the length of the iterable, if it has one.

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
    """Whether a person may be reading the output: stderr is a terminal, or this is a notebook."""
    if logger.in_notebook():
        return True
    try:
        return bool(sys.stderr and sys.stderr.isatty())
    except ValueError:  # closed
        return False


def _can_move() -> bool:
    """Whether a bar can be redrawn in place, for which rich needs ipywidgets in a notebook."""
    if logger.in_notebook():
        return importlib.util.find_spec("ipywidgets") is not None
    return is_live()


def _rate(speed: float, unit: str, samples: int | None) -> str:
    rate = f"{speed:.4g} {unit}/s"
    # Not `.4g`, which would print 12345 samples per second as 1.234e+04.
    return f"{rate} {speed * samples:,.0f} samples/s" if samples else rate


def _columns(unit: str, samples: int | None) -> list[Any]:
    amount: list[Any] = [rich_progress.MofNCompleteColumn(), _RateColumn(unit, samples)]
    if unit == "B":
        amount = [rich_progress.DownloadColumn(), rich_progress.TransferSpeedColumn()]
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


class _LineProgress(rich_progress.Progress):
    """Puts the columns one after another and gives the bar the width that they leave.

    rich itself makes a table of them, which takes several times as long, twice a second. On a
    narrow terminal, the table shows neither the bar nor the count.
    """

    def get_renderables(self) -> Iterable[Segments]:
        for task in self.tasks:
            parts = [
                column.format(task=task) if isinstance(column, str) else column(task)
                for column in self.columns
            ]
            parts = [part for part in parts if isinstance(part, ProgressBar) or str(part)]
            texts = [str(part) for part in parts if not isinstance(part, ProgressBar)]
            used = sum(cell_len(text) for text in texts) + len(texts)
            options = self.console.options
            space = options.update_width(max(SHORTEST_BAR, options.max_width - used))
            line: list[Segment] = []
            for part in parts:
                if line:
                    line.append(Segment(" "))
                if isinstance(part, ProgressBar):
                    line += self.console.render(part, space)
                else:
                    style = self.console.get_style(part.style) if isinstance(part, Text) else None
                    line.append(Segment(str(part), style))
            yield Segments(line)


def lasting_console(stream: IO[str]) -> Console:
    """A console of rich that outlives its terminal: later output is lost without an error.

    By itself, rich ends the process when a pipe breaks, and raises an error when a terminal has
    gone, also in the thread that draws a bar. A run must continue, and its log file has everything
    important.
    """
    return Console(file=_LastingStream(stream))  # type: ignore[arg-type]


class _LastingStream:
    """A text stream that ignores failures to write."""

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError):  # gone, or closed
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
