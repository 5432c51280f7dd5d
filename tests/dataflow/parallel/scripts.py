"""Whole programs in processes of their own, and a look at what they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

SECONDS = 60.0  # for anything that is sure to happen, on a machine as busy as it may be


def run(code: str, *arguments: str, cwd: Path | None = None, how: str = "file", **kwargs):
    """Runs a program as a script without a main guard, by `python -c`, or as a notebook's cells."""
    process = start(code, *arguments, cwd=cwd, how=how, **kwargs)
    out, error = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, error
    return out


def start(code: str, *arguments: str, cwd: Path | None = None, how: str = "file", **kwargs):
    code = textwrap.dedent(code)
    if how == "cells":
        # As a notebook does: source text that belongs to no file, run in the namespace of __main__.
        code = f"import sys\nfor cell in {code.split('# %%')!r}:\n    exec(cell, globals())\n"
    if how == "file":
        path = Path(cwd or ".") / "script.py"
        path.write_text(code)
        command = [sys.executable, str(path)]
    else:
        command = [sys.executable, "-c", code]
    return subprocess.Popen(
        [*command, *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


def alive(pid: int) -> bool:
    """Whether a process still runs; a zombie does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return text.rpartition(b") ")[2][:1] not in (b"Z", b"X")


def children(pid: int | None = None) -> set[int]:
    """The processes that descend from one, zombies left out."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_bytes().rpartition(b") ")[2].split()
            except OSError:
                continue
            if fields[0] not in (b"Z", b"X"):
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found: set[int] = set()
    todo = [pid or os.getpid()]
    while todo:
        below = parents.get(todo.pop(), [])
        found.update(below)
        todo += below
    return found


def eventually(condition, what: str = "") -> None:
    """Waits for something that is to happen at once, without saying how quick this machine is."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"it never came: {what or condition}"
        time.sleep(0.01)
