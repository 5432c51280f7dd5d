"""What a process holds at a moment: a test looks before and after, and asks what has come."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tests.dataflow.parallel.scripts import children


def held() -> set[str]:
    """Its threads, descriptors and descending processes, named so that no two are the same.

    To be subtracted, not counted: what an earlier test left to the garbage collector may go in
    between, and a count would then be too small, or hide something that came.
    """
    return threads() | descriptors() | {f"process {pid}" for pid in children()}


def threads() -> set[str]:
    """Python's own; not those of libraries that have merely run some Python."""
    running = (t for t in threading.enumerate() if not isinstance(t, threading._DummyThread))
    return {f"thread {thread.name} {thread.ident}" for thread in running}


def descriptors() -> set[str]:
    """None on systems that do not list them."""
    table, found = Path("/proc/self/fd"), set()
    for number in os.listdir(table) if table.is_dir() else ():
        try:
            found.add(f"descriptor {number} {os.readlink(table / number)}")
        except FileNotFoundError:
            pass  # the one by which they were listed
    return found
