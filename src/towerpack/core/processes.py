"""Processes: how one ended, how it is doing."""

from __future__ import annotations

import signal

_MEANINGS = {
    signal.SIGKILL: "probably out of memory, or killed by someone",
    signal.SIGSEGV: "native code crashed",
    signal.SIGBUS: "native code crashed, or a mapped file was cut short",
    signal.SIGABRT: "native code gave up",
    signal.SIGILL: "native code for another processor",
    signal.SIGFPE: "native code divided by zero",
}


def describe_exit(status: int | None) -> str:
    """An exit status, negative for a signal as in `subprocess`, in words.

    >>> describe_exit(-9)
    'SIGKILL: probably out of memory, or killed by someone'
    >>> describe_exit(3)
    'exit code 3'
    """
    if status is None:
        return "gone, exit status unknown"
    if status >= 0:
        return f"exit code {status}"
    try:
        number = signal.Signals(-status)
    except ValueError:
        return f"signal {-status}"
    meaning = _MEANINGS.get(number)
    return f"{number.name}: {meaning}" if meaning else number.name


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by SIGSTOP or SIGTSTP; False where that cannot be seen."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # After the name, which may itself hold spaces and parentheses.
            return file.read().rpartition(b") ")[2][:1] == b"T"
    except OSError:
        return False


def private_memory(pid: int) -> int:
    """Bytes of memory that belong to a process alone; 0 where that cannot be seen."""
    total = 0
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Private_"):
                    total += int(line.split()[1]) * 1024
    except OSError:
        return 0
    return total
