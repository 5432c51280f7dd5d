"""A guard for flows that cannot be iterated twice at the same time."""

from __future__ import annotations

import threading
from types import TracebackType


class DataFlowReentrantGuard:
    """A context manager that refuses to be entered while it is entered.

    For a flow written as a generator that shares something its iterators cannot share:

        def __iter__(self):
            with self._guard:
                ...

    No flow of towerpack needs one.

    >>> guard = DataFlowReentrantGuard()
    >>> with guard:
    ...     pass
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise threading.ThreadError(
                "this flow is being iterated already and cannot be twice at the same time; make a "
                "second one, or close() the first iterator"
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()

    def __getstate__(self) -> dict[str, object]:
        return {}

    def __setstate__(self, state: dict[str, object]) -> None:
        self._begin()
