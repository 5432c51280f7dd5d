"""Ctrl-C and SIGTERM as requests: the step is finished first."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from towerpack.core import logger

EXIT_CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}  # 128 + the signal, as shells report it


class Interrupts:
    """While `catching`, the first Ctrl-C or SIGTERM is only noted; a second one acts at once."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    @contextlib.contextmanager
    def catching(self) -> Iterator[None]:
        """Does nothing outside of the main thread, where Python lets nobody handle signals."""
        self.received = None
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._note) for number in EXIT_CODES}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        received = signal.Signals(number)
        if self.received is not None:
            raise _error(received)
        self.received = received
        logger.warning(
            "%s: finishing the step, then saving; once more to leave at once", received.name
        )

    def error(self) -> BaseException | None:
        """What to raise when everything is saved, if a signal came."""
        return None if self.received is None else _error(self.received)


def _error(received: signal.Signals) -> BaseException:
    if received == signal.SIGINT:
        return KeyboardInterrupt()
    return SystemExit(EXIT_CODES[received])
