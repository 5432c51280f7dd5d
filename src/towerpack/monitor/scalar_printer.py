"""Scalars on the console, as a table per epoch, and in the log."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from rich.text import Text

from towerpack.core import logger
from towerpack.core.progress import is_live, lasting_console
from towerpack.monitor.base import MonitorBase
from towerpack.monitor.verdict import EpochTimes


class ScalarPrinter(MonitorBase):
    """Prints the scalars of each epoch, sorted by name, with their change since the last epoch.

    On a terminal or in a notebook, it prints one table per epoch, elsewhere one plain line. In
    both cases, `log.log` has the line. `enable_step` also logs scalars after each step that put
    some. `whitelist` and `blacklist` are regular expressions that are searched in the names. The
    verdict on the epoch's time follows the scalars and replaces `time/...`, which it summarizes.
    """

    def __init__(
        self,
        enable_step: bool = False,
        enable_epoch: bool = True,
        whitelist: Sequence[str] | None = None,
        blacklist: Sequence[str] = ("^time/",),
    ):
        self.enable_step, self.enable_epoch = enable_step, enable_epoch
        self._wanted = [re.compile(pattern) for pattern in (whitelist if whitelist else [""])]
        self._unwanted = [re.compile(pattern) for pattern in blacklist or ()]
        self._scalars: dict[str, float] = {}
        self._before: dict[str, float] = {}  # of earlier epochs
        self._of_step: dict[str, float] = {}
        self._step = 0
        self._verdict = ""

    def process_scalar(self, name: str, value: float, step: int, epoch: int) -> None:
        wanted = any(pattern.search(name) for pattern in self._wanted)
        if not wanted or any(pattern.search(name) for pattern in self._unwanted):
            return
        self._scalars[name] = value
        if self.enable_step:
            if step != self._step:
                self._log_step()
            self._step = step
            self._of_step[name] = value

    def process_times(self, times: EpochTimes, verdict: str, step: int, epoch: int) -> None:
        self._verdict = verdict

    def flush(self, step: int, epoch: int) -> None:
        self._log_step()
        if self._scalars and self.enable_epoch:
            live = is_live()
            if live:
                self._show(self._table(step, epoch))
            logger.info(
                "epoch %d, step %d: %s",
                epoch,
                step,
                _in_line(self._scalars),
                extra=logger.ONLY_IN_FILE if live else None,
            )
        if self._verdict and self.enable_epoch:
            logger.info("time of epoch %d: %s", epoch, self._verdict)
        self._before |= self._scalars
        self._scalars, self._verdict = {}, ""

    def close(self) -> None:
        self._log_step()

    def _log_step(self) -> None:
        if self._of_step:
            logger.info("step %d: %s", self._step, _in_line(self._of_step))
        self._of_step = {}

    def _table(self, step: int, epoch: int) -> Text:
        """The scalars in columns, as plain text, which is faster than a table of rich."""
        rows = [self._row(name) for name in sorted(self._scalars)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = Text(f"epoch {epoch}, step {step:,}", style="italic")
        for name, value, change in rows:
            table.append(f"\n {name:<{widths[0]}}  ", "not italic")
            table.append(f"{value:>{widths[1]}}  ", "not italic bold")
            table.append(f"{change:>{widths[2]}}", "not italic dim")
        return table

    def _row(self, name: str) -> tuple[str, str, str]:
        value, before = self._scalars[name], self._before.get(name)
        change = "" if before is None or before == value else f"{value - before:+.2g}"
        return name, f"{value:.5g}", change

    def _show(self, table: Text) -> None:
        stream = sys.stdout if logger.in_notebook() else sys.stderr
        lasting_console(stream).print(table, soft_wrap=True)


def _in_line(scalars: dict[str, float]) -> str:
    return "  ".join(f"{name} {scalars[name]:.5g}" for name in sorted(scalars))
