"""Python's garbage collector, kept out of the way of a long import."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_at_rest() -> Iterator[None]:
    """No garbage is looked for inside; for what makes many objects that all stay.

    Afterwards the collector is as it was, and does not begin with all that was made: those objects
    count as old, as they would after some collections. Reference counts work as ever. Another
    thread has no collections meanwhile either.

    >>> with collector_at_rest():
    ...     gc.isenabled()
    False
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # Both are moves of whole lists. Without them the next collection would look at every object
        # made inside, and the one after it again. What a user has frozen must stay so.
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()
