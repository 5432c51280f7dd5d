"""One rank of a run: its process, its output, its progress, and how it failed."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

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
    killed_with_parent,
    pidfd_of,
)

# A rank that ends like this was asked to end, and has saved: the restart code, or 128 + SIGINT or
# SIGTERM. A program that does not handle these signals ends by them.
STOPPED = (RESTART_CODE, 130, 143)
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
HUNG_CODE = 128 + signal.SIGKILL
CHUNK = 1 << 16  # bytes of output that are passed on at once; what a pipe holds
TAIL = 16_000  # the longest traceback, and the part of a log in which one is searched
TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True)
class Failure:
    """How a rank failed. `code` is the exit code that it causes; `time` is seconds since 1970."""

    rank: int
    host: str
    time: float
    code: int
    text: str
    secondary: bool = False  # it only follows from the loss of another rank

    def is_python_error(self) -> bool:
        return TRACEBACK in self.text


class RankProcess:
    """A rank that runs `command`, until it ends or is killed; its own descendants end with it.

    The output of the chief goes to the console and to `log`, that of another rank only to `log`.
    The rank has a process group of its own. So Ctrl-C in a terminal reaches only the supervisor,
    which passes it on once.
    """

    def __init__(
        self, command: Sequence[str], cluster: Cluster, host: str, log: Path, private: Path
    ):
        self.cluster, self.host, self.path = cluster, host, log
        self._command, self._private = command, private
        self.killed = False  # by this process, because of another rank
        self._asked = False  # to end, by this process
        self._hung_at: float | None = None
        self.code: int | None = None
        self.ended_at = 0.0
        name = f"rank-{cluster.rank}-attempt-{cluster.attempt}"
        self._beats, self._report = private / f"{name}.beats", private / f"{name}.json"
        self._log = open(log, "ab", buffering=0)  # noqa: SIM115 (`_close` does)
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        place = f"rank {cluster.rank} of {cluster.size} on host {host}"
        self._log.write(f"===== {stamp}, attempt {cluster.attempt}, {place}\n".encode())
        self._log_start = self._log.tell()
        self._log_failed = False
        self._beats.write_bytes(bytes(BEAT.size))  # so that a full disk cannot stop a beat
        self._started = time.monotonic()
        output: Any = subprocess.PIPE if cluster.is_chief else self._log
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=self._environment(),
            bufsize=0,
            process_group=0,
            # The supervisor has no threads, so code may run between fork and exec.
            preexec_fn=functools.partial(killed_with_parent, os.getpid()),
        )
        self.sentinel = pidfd_of(self.process.pid)
        # The chief's pipes, and where their content is shown.
        self.pipes: dict[int, str] = {}
        for pipe, console in ((self.process.stdout, "stdout"), (self.process.stderr, "stderr")):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self.pipes[pipe.fileno()] = console

    def again(self) -> RankProcess:
        """The same rank in a new process."""
        self._report.unlink(missing_ok=True)
        return RankProcess(self._command, self.cluster, self.host, self.path, self._private)

    def _environment(self) -> Mapping[str, str]:
        files = {PROGRESS: str(self._beats), FAILURE: str(self._report)}
        return {
            "PYTHONUNBUFFERED": "1",  # a killed rank would take the last lines along
            **os.environ,
            **self.cluster.variables(),
            **files,
        }

    def relay(self, pipe: int) -> None:
        """Passes on what is in one of the chief's pipes; forgets the pipe after its end."""
        try:
            data = os.read(pipe, CHUNK)
        except BlockingIOError:
            return
        if not data:
            del self.pipes[pipe]
            return
        self._write_log(data)
        try:
            console = getattr(sys, self.pipes[pipe])
            console.buffer.write(data)
            console.buffer.flush()
        except (AttributeError, OSError, ValueError):  # the console is closed; the log has it all
            pass

    def _write_log(self, data: bytes) -> None:
        try:
            self._log.write(data)
        except OSError as error:
            if not self._log_failed:
                logger.error("%s cannot be written, so lines will be missing: %s", self.path, error)
            self._log_failed = True

    def poll(self) -> bool:
        """Whether the rank has ended; `code` is then its exit status, negative for a signal."""
        if self.code is None and (self.sentinel == NO_DESCRIPTOR or is_readable(self.sentinel)):
            if self.sentinel != NO_DESCRIPTOR:
                self._kill_group()  # not reaped yet, so the number cannot be another group's
            self.code = self.process.poll()
            if self.code is not None:
                self.ended_at = time.time()
                self._close()
        return self.code is not None

    def _close(self) -> None:
        for pipe in list(self.pipes):
            while pipe in self.pipes and is_readable(pipe):
                self.relay(pipe)
        self.pipes.clear()
        files: list[IO | None] = [self.process.stdout, self.process.stderr, self._log]
        for file in files:
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

    def _kill_group(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def began(self) -> bool:
        """Whether it reached a first step."""
        return read_beat(self._beats) is not None

    def idle_since(self) -> float | None:
        """The monotonic time of its last sign of progress; None after it finished training."""
        step, moment = read_beat(self._beats) or (0, self._started)
        return None if step == FINISHED else moment

    def mark_hung(self, since: float) -> None:
        """Has `failure` report that the rank made no progress since this monotonic time."""
        self._hung_at = time.time() - (time.monotonic() - since)

    def ended_well(self) -> bool:
        """Whether it ended by itself without an error, or because it was asked to."""
        asked = (-number for number in STOP_SIGNALS if self._asked)
        return self.code in (0, *STOPPED, *asked)

    def failure(self) -> Failure | None:
        """How it failed; None if it did not, or was only killed after another rank had failed."""
        report, status = self._read_report(), self.code or 0
        if report is None and self._hung_at is None and (self.killed or self.ended_well()):
            return None
        rank, host = self.cluster.rank, self.host
        name = f"rank {rank} on host {host}"
        code = 128 - status if status < 0 else status
        if report is not None:
            text = f"{name} failed:\n{report['traceback'].rstrip()[-TAIL:]}"
            code = 1 if self.killed or not code else code
            return Failure(rank, host, report["time"], code, text, report["secondary"])
        if self._hung_at is not None:
            return Failure(rank, host, self._hung_at, HUNG_CODE, f"{name} {self._describe_hang()}")
        if status < 0:
            text = f"{name} was killed by {describe_exit(status)}"
        else:
            text = f"{name} ended with {describe_exit(status)}{self._last_traceback()}"
        return Failure(rank, host, self.ended_at, code, text)

    def _describe_hang(self) -> str:
        beat = read_beat(self._beats)
        where = "before its first step" if beat is None else f"after step {beat[0]}"
        return (
            f"made no progress {where} and was killed; {self.path} ends with the stacks of its "
            "threads if it could still print them"
        )

    def _read_report(self) -> dict[str, Any] | None:
        try:
            return json.loads(self._report.read_text())
        except FileNotFoundError:
            return None

    def _last_traceback(self) -> str:
        """The traceback at the end of its log, for an error before the trainer existed."""
        with open(self.path, "rb") as file:
            file.seek(max(self._log_start, os.path.getsize(self.path) - TAIL))
            tail = file.read().decode(errors="replace")
        found = tail.rfind(TRACEBACK)
        return f":\n{tail[found:].rstrip()}" if found >= 0 else f"; its output is in {self.path}"
