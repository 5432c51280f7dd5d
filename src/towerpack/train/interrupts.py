"""Requests to end training: Ctrl-C, SIGTERM, or a callback. The step is finished first."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, TracebackType

from towerpack.callbacks import StopTraining
from towerpack.core import logger
from towerpack.core.cluster import progress

EXIT_CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}  # 128 + the signal, as shells report it


# Slurm sends a signal to a launcher and to its ranks, and the launcher passes it on to them.
SAME_REQUEST_SECONDS = 2.0

BY_CALLBACK = -1  # the code of a request by a callback; that of a signal is its number


class StopRequest:
    """Whether this process was asked to end training.

    While `catching_signals`, the first Ctrl-C or SIGTERM is only recorded; a second one acts at
    once. To a rank under a launcher, the same one within SAME_REQUEST_SECONDS is no second one.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._noted = 0.0
        self.reason: str | None = None

    def clear(self) -> None:
        self.received = self.reason = None

    def by_callback(self, reason: str) -> None:
        """Records that a callback raised `StopTraining`; the first one counts."""
        self.reason = self.reason or reason or "a callback asked for it"

    def recording(self, hook: Callable[[], None]) -> None:
        """Calls a hook of the callbacks; if it asks for the end, that is only recorded.

        So what the other callbacks do in this event, and what was deferred in it, still happens.
        """
        try:
            hook()
        except StopTraining as reason:
            self.by_callback(str(reason))

    @property
    def code(self) -> int:
        """What was asked for, as a number: 0 for nothing."""
        return self.received or (BY_CALLBACK if self.reason else 0)

    def agreed(self, codes: Sequence[int], step: int) -> str:
        """Why all ranks end training, if one of them was asked to; empty if none was."""
        ranks = [rank for rank, code in enumerate(codes) if code]
        if not ranks:
            return ""
        where = f" on rank {ranks[0]}" if len(codes) > 1 else ""
        signals = [signal.Signals(int(code)) for code in codes if code > 0]
        if not signals or BY_CALLBACK in codes:
            return self.reason or f"a callback asked for it{where}"
        self.received = signals[0]  # on all ranks: they end alike
        return f"{self.received.name}{where} after step {step}"

    @contextlib.contextmanager
    def catching_signals(self) -> Iterator[None]:
        """Does nothing outside of the main thread, where Python does not handle signals."""
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
            passed = time.monotonic() - self._noted
            if (
                progress.is_supervised
                and received == self.received
                and passed < SAME_REQUEST_SECONDS
            ):
                return
            _skip_the_interpreters_end()
            raise _error(received)
        self.received, self._noted = received, time.monotonic()
        logger.warning(
            "%s: finishing the step, then saving; a second signal exits at once", received.name
        )

    def error(self) -> BaseException | None:
        """What to raise when everything is saved, if a signal came."""
        return None if self.received is None else _error(self.received)


def _skip_the_interpreters_end() -> None:
    """Has a KeyboardInterrupt that nothing catches end the process at once.

    The interpreter would wait for threads, a checkpoint's writer among them, and for TensorFlow's
    teardown, which takes seconds. Workers end with the process.
    """
    print_it = sys.excepthook

    def leave(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        print_it(kind, error, traceback)
        if issubclass(kind, KeyboardInterrupt):
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(AttributeError, OSError, ValueError):  # it is closed
                    stream.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)

    sys.excepthook = leave


def _error(received: signal.Signals) -> BaseException:
    if received == signal.SIGINT:
        return KeyboardInterrupt()
    return SystemExit(EXIT_CODES[received])
