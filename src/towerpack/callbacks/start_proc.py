"""Processes and threads that live as long as the training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from towerpack.callbacks.base import Callback
from towerpack.core import logger
from towerpack.core.processes import start_proc_mask_signal
from towerpack.core.threads import StoppableThread

STOP_SECONDS = 5.0  # what is asked to stop gets this long


class StartProcOrThread(Callback):
    """Starts processes or threads before training and stops them after it.

    Processes ignore Ctrl-C, which is for the trainer to handle. With `stop_at_last=True` processes
    are terminated and `StoppableThread`s asked to stop, also after an exception; other threads
    cannot be stopped, and are named if they are still running.

    >>> import threading
    >>> clock = StartProcOrThread(threading.Thread(target=print, args=("started",)))
    """

    chief_only = False

    def __init__(self, startable: Any, stop_at_last: bool = True):
        self.startables = list(startable) if isinstance(startable, Sequence) else [startable]
        for one in self.startables:
            if not (hasattr(one, "start") and hasattr(one, "join")):
                raise TypeError(f"expected processes or threads, received {one!r}")
        self.stop_at_last = stop_at_last
        self._started: list[Any] = []

    def _before_train(self) -> None:
        for one in self.startables:
            if hasattr(one, "terminate"):
                start_proc_mask_signal(one)
            else:
                one.start()
            self._started.append(one)
            logger.info("started %s", one.name)

    def _after_train(self) -> None:
        started, self._started = self._started, []
        if not self.stop_at_last:
            return
        for one in started:
            if isinstance(one, StoppableThread):
                one.stop()
            elif hasattr(one, "terminate") and one.is_alive():
                one.terminate()
        for one in started:
            if one.is_alive() and (isinstance(one, StoppableThread) or hasattr(one, "terminate")):
                one.join(STOP_SECONDS)
            if one.is_alive():
                logger.warning("%s was not stopped and is still running", one.name)
