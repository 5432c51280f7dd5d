"""Telling whether the process that wrote something is still there."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_START_TIME_FIELD = 19  # of /proc/<pid>/stat, counted behind the name in brackets


def process_identity() -> dict[str, Any]:
    """This process, so that `is_alive` can recognize it later: numbers are used again."""
    pid = os.getpid()
    return {"pid": pid, "host": socket.gethostname(), "start": _start_time(pid)}


def is_alive(identity: Mapping[str, Any]) -> bool | None:
    """Whether that process still runs; None if it is of another machine.

    >>> is_alive(process_identity())
    True
    >>> is_alive(process_identity() | {"start": "another"})
    False
    """
    if identity["host"] != socket.gethostname():
        return None
    try:
        os.kill(identity["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is there, and somebody else's
    return _start_time(identity["pid"]) == identity["start"]


def _start_time(pid: int) -> str | None:
    """Ticks from the machine's start to the process's; None where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[_START_TIME_FIELD]
