"""What was computed for an epoch, an order for example, kept for the latest few."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")
KEPT = 4  # two epochs meet at their border, in two branches of a pipeline


class EpochCache(Generic[T]):
    """The latest few values by key; may be used from several threads.

    A copy in another process begins empty: to compute an order is cheaper than to send it.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, T] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        found = self._kept.get(key)
        if found is None:
            found = compute()
            with self._lock:
                while len(self._kept) >= KEPT:
                    del self._kept[next(iter(self._kept))]
                self._kept[key] = found
        return found

    def __reduce__(self) -> tuple[type[EpochCache], tuple[()]]:
        return EpochCache, ()
