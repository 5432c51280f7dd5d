"""Scalars in the log, one line per epoch."""

from __future__ import annotations

import re
from collections.abc import Sequence

from towerpack.core import logger
from towerpack.monitor.base import MonitorBase


class ScalarPrinter(MonitorBase):
    """Logs the scalars of each epoch in one line, sorted by name.

    `whitelist` and `blacklist` are regular expressions searched in the names.
    """

    def __init__(
        self, whitelist: Sequence[str] | None = None, blacklist: Sequence[str] | None = None
    ):
        self._wanted = [re.compile(pattern) for pattern in (whitelist if whitelist else [""])]
        self._unwanted = [re.compile(pattern) for pattern in blacklist or []]
        self._scalars: dict[str, float] = {}

    def process_scalar(self, name: str, value: float, step: int, epoch: int) -> None:
        wanted = any(pattern.search(name) for pattern in self._wanted)
        if wanted and not any(pattern.search(name) for pattern in self._unwanted):
            self._scalars[name] = value

    def flush(self, step: int, epoch: int) -> None:
        if self._scalars:
            scalars = "  ".join(
                f"{name} {self._scalars[name]:.5g}" for name in sorted(self._scalars)
            )
            logger.info("epoch %d, step %d: %s", epoch, step, scalars)
        self._scalars = {}
