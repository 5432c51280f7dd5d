"""The line that a progress bar is drawn as."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import progress as rich_progress
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.text import Text

LEAST_BAR = 4  # characters


class LineProgress(rich_progress.Progress):
    """rich's progress with its columns simply beside each other; the bar takes what is left.

    A table, which rich makes of them, measures and lays out every column, by much code that is no
    longer in the processor's cache when it is needed, twice a second. A column gives a `Text` of
    one style, a string, which is shown as it is, or a bar.
    """

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            yield _Line(
                [c.format(task=task) if isinstance(c, str) else c(task) for c in self.columns]
            )


class _Line:
    def __init__(self, parts: Sequence[RenderableType]):
        self.parts = [part for part in parts if isinstance(part, ProgressBar) or str(part)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        texts = [part for part in self.parts if not isinstance(part, ProgressBar)]
        taken = sum(cell_len(str(text)) for text in texts) + len(self.parts) - 1
        room = options.update_width(max(LEAST_BAR, options.max_width - taken))
        for index, part in enumerate(self.parts):
            if index:
                yield Segment(" ")
            if isinstance(part, ProgressBar):
                yield from console.render(part, room)
            elif isinstance(part, Text):
                yield Segment(part.plain, console.get_style(part.style))
            else:
                yield Segment(str(part))
