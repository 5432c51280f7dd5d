"""One rank of a run: its process, its output, its progress, and how it failed."""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from towerpack.core import logger
from towerpack.core.cluster import (
    BEAT,
    FAILURE,
    FINISHED,
    PROGRESS,
    RESTART_CODE,
    Cluster,
    read_beat,
)
from towerpack.core.processes import (
    NO_DESCRIPTOR,
    describe_exit,
    is_readable,
    is_stopped,
    killed_with_parent,
    pidfd_of,
)
from towerpack.launch.guard import Guard
from towerpack.launch.restarts import PYTHON_ERROR, Failure

# A rank that ends like this was asked to end, and has saved: the restart code, or 128 + SIGINT or
# SIGTERM. A program that does not handle these signals ends by them.
STOPPED = (RESTART_CODE, 130, 143)
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
HUNG_CODE = 128 + signal.SIGKILL
CHUNK = 1 << 16  # bytes of output that are passed on at once; what a pipe holds
LAST_CHUNKS = 16  # read of a rank that has ended; only a process that left its group writes more
TAIL = 16_000  # the longest traceback, and the part of the output in which one is searched
TRACEBACK = "Traceback (most recent call last):"


@dataclass
class _Pipe:
    """A pipe of a rank: the console that shows it, and the beginning of a line for the log.

    The log gets whole lines, since Python writes a line in pieces, and the chief has two streams.
    """

    console: str
    rest: bytes = b""


class RankProcess:
    """A rank that runs `command`, until it ends or is killed; its own descendants end with it.

    The output of the chief goes to the console and to `log`, that of another rank only to `log`.
    It comes through pipes, so a rank does not notice that a console is closed or a disk is full.
    The rank has a process group of its own. So Ctrl-C in a terminal reaches only the supervisor,
    which passes it on once. `failure` is how it failed. It is None as long as it runs, after it
    ended well, and if it was only killed because another rank had failed.
    """

    def __init__(
        self,
        command: Sequence[str],
        cluster: Cluster,
        host: str,
        log: Path,
        private: Path,
        guard: Guard,
    ):
        self.cluster, self.host, self.path, self.guard = cluster, host, log, guard
        self._command, self._private = command, private
        self.killed = False  # by this process, because of another rank
        self._asked = False  # to end, by this process
        self._hang = ""
        self._hung_at = 0.0
        self.code: int | None = None
        self.failure: Failure | None = None
        name = f"rank-{cluster.rank}-attempt-{cluster.attempt}"
        self._beats, self._report = private / f"{name}.beats", private / f"{name}.json"
        self._beats.write_bytes(bytes(BEAT.size))  # so that a full disk cannot stop a beat
        self._log = open(log, "ab", buffering=0)  # noqa: SIM115 (`_close` does)
        self._log_failed = False
        self._tail = b""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        place = f"rank {cluster.rank} of {cluster.size} on host {host}"
        self._write_log(f"===== {stamp}, attempt {cluster.attempt}, {place}\n".encode())
        self._started = time.monotonic()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if cluster.is_chief else subprocess.STDOUT,
            env=self._environment(),
            bufsize=0,
            process_group=0,
            # The supervisor has no threads, so code may run between fork and exec.
            preexec_fn=functools.partial(killed_with_parent, os.getpid()),
        )
        guard.add(self.process.pid)
        self.sentinel = pidfd_of(self.process.pid)
        self.pipes: dict[int, _Pipe] = {}
        for pipe, console in ((self.process.stdout, "stdout"), (self.process.stderr, "stderr")):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self.pipes[pipe.fileno()] = _Pipe(console if cluster.is_chief else "")

    def again(self) -> RankProcess:
        """The same rank in a new process, after it has ended."""
        self._report.unlink(missing_ok=True)
        where = self.host, self.path, self._private, self.guard
        return RankProcess(self._command, self.cluster, *where)

    def _environment(self) -> Mapping[str, str]:
        files = {PROGRESS: str(self._beats), FAILURE: str(self._report)}
        return {
            "PYTHONUNBUFFERED": "1",  # a killed rank would take the last lines along
            **os.environ,
            **self.cluster.variables(),
            **files,
        }

    def relay(self, pipe: int) -> None:
        """Passes on what is in a pipe; forgets the pipe after its end."""
        try:
            data = os.read(pipe, CHUNK)
        except BlockingIOError:
            return
        found = self.pipes[pipe]
        *lines, found.rest = (found.rest + data).rpartition(b"\n")
        if not data or len(found.rest) > TAIL:
            lines, found.rest = [*lines, found.rest], b""
        self._write_log(b"".join(lines))
        if not data:
            del self.pipes[pipe]
        elif found.console:
            _show(found.console, data)

    def _write_log(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-TAIL:]
        try:
            self._log.write(data)
        except OSError as error:
            if not self._log_failed:
                logger.error("%s cannot be written, so lines will be missing: %s", self.path, error)
            self._log_failed = True

    def poll(self) -> bool:
        """Whether the rank has ended; `code` is then its exit status, negative for a signal."""
        if self.code is None and (self.sentinel == NO_DESCRIPTOR or is_readable(self.sentinel)):
            code = self.process.poll()
            if code is not None:
                # At once: while a process of the group runs, the number is not given to another
                # one, and if none does, it is not given again so soon.
                self._kill_group()
                self.guard.remove(self.process.pid)
                self._close()
                self.code = code
                self.failure = self._find_failure(code)
        return self.code is not None

    def _close(self) -> None:
        for pipe, found in list(self.pipes.items()):
            for _ in range(LAST_CHUNKS):
                if pipe in self.pipes and is_readable(pipe):
                    self.relay(pipe)
            if pipe in self.pipes:
                self._write_log(found.rest)
        self.pipes.clear()
        for file in (self.process.stdout, self.process.stderr, self._log):
            if file is not None:
                file.close()
        if self.sentinel != NO_DESCRIPTOR:
            os.close(self.sentinel)

    def send(self, number: int) -> None:
        """Sends a signal to the rank, not to its descendants."""
        if self.code is None:
            self._asked |= number in STOP_SIGNALS
            self.process.send_signal(number)

    def kill(self) -> None:
        """Kills the rank and its descendants; `poll` reports when it has ended."""
        if self.code is None:
            self.killed = True
            self._kill_group()

    def describe_kill(self) -> str:
        """The state in which it is killed, in words."""
        state = "a signal had stopped it" if is_stopped(self.process.pid) else "it still ran"
        return f"rank {self.cluster.rank} on host {self.host} was killed: {state}"

    def _kill_group(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def began(self) -> bool:
        """Whether it reached a first step."""
        return read_beat(self._beats) is not None

    def idle_since(self) -> float | None:
        """The monotonic time of its last sign of progress; None while no other one is expected."""
        step, moment = read_beat(self._beats) or (0, self._started)
        return None if step == FINISHED or self.cluster.is_server else moment

    def mark_hung(self, since: float, limit: float) -> None:
        """Notes as its failure that it made no progress since this monotonic time."""
        self._hung_at = time.time() - (time.monotonic() - since)
        beat = read_beat(self._beats)
        where = f"after step {beat[0]}" if beat else "before its first step"
        self._hang = (
            f"made no progress for {limit:g} s {where} (see --hang-timeout), so all ranks were "
            f"killed. The files rank-N.log in {self.path.parent} end with the stacks of their "
            "threads: a rank that waits in a collective waits for another one"
        )

    def _find_failure(self, status: int) -> Failure | None:
        report = self._read_report()
        asked = (-number for number in STOP_SIGNALS if self._asked)
        well = self.killed or status in (*STOPPED, *asked)
        if status == 0 or (well and report is None and not self._hang):
            return None
        rank, host, moment, secondary = self.cluster.rank, self.host, time.time(), False
        code = 128 - status if status < 0 else status
        if report is not None:
            moment, secondary = report["time"], report["secondary"]
            code = PYTHON_ERROR if self.killed and status < 0 else code
            text = f"failed:\n{report['traceback'].rstrip()[-TAIL:]}"
        elif self._hang:
            moment, code, text = self._hung_at, HUNG_CODE, self._hang
        elif status < 0:
            text = f"was killed by {describe_exit(status)}; its output is in {self.path}"
        else:
            text = f"ended with {describe_exit(status)}{self._last_traceback()}"
        text = f"rank {rank} on host {host} {text}"
        # A name of a file may contain what is no valid text.
        text = text.encode(errors="backslashreplace").decode()
        return Failure(rank, host, moment, code, text, secondary)

    def _read_report(self) -> dict[str, Any] | None:
        try:
            return json.loads(self._report.read_text())
        except FileNotFoundError:
            return None

    def _last_traceback(self) -> str:
        """The traceback at the end of its output, for an error before the trainer existed."""
        tail = self._tail.decode(errors="replace")
        found = tail.rfind(TRACEBACK)
        return f":\n{tail[found:].rstrip()}" if found >= 0 else f"; its output is in {self.path}"


def _show(console: str, data: bytes) -> None:
    """Writes to a standard stream, past its buffer: Python fails at its end if that is not empty.

    If the stream is closed or broken, the log of the rank has the data.
    """
    try:
        descriptor = getattr(sys, console).fileno()
        while data:
            select.select([], [descriptor], [])  # another process may have made it non-blocking
            data = data[os.write(descriptor, data) :]
    except (AttributeError, OSError, ValueError):
        pass
