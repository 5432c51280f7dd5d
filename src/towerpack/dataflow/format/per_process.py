"""Handles of other libraries, opened on first use and never carried into another process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A handle that `open_()` makes on first use; a worker, and a forked child, makes its own.

    `open_` travels to workers, the handle does not.

    >>> handle = PerProcess(dict)
    >>> handle.get() is handle.get()
    True
    """

    def __init__(self, open_: Callable[[], T]):
        self._open = open_
        self._opened: tuple[int, T] | None = None
        self._lock = threading.Lock()

    def get(self) -> T:
        opened = self._opened
        if opened is None or opened[0] != os.getpid():
            with self._lock:
                opened = self._opened
                if opened is None or opened[0] != os.getpid():
                    opened = self._opened = (os.getpid(), self._open())
        return opened[1]

    def drop(self) -> None:
        self._opened = None

    def __reduce__(self) -> tuple[Any, ...]:
        return PerProcess, (self._open,)
