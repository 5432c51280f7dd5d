"""Starts `towerpack launch` with a script of a test, and cleans up after it."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SECONDS = 90.0  # for what is sure to happen, however busy the machine is
MARK = "TOWERPACK_LAUNCH_TEST"  # all processes of a test have it in their environment
PRELUDE = """
import json, os, signal, subprocess, sys, threading, time
from pathlib import Path
from towerpack.core.cluster import progress, this_cluster

cluster = this_cluster()
rank, attempt = (cluster.rank, cluster.attempt) if cluster else (None, None)

def wait_for(*names):
    while not all(Path(name).exists() for name in names):
        time.sleep(0.01)

def note(name, value=""):
    Path(f"{name}.part-{rank}").write_text(str(value))
    Path(f"{name}.part-{rank}").replace(name)

"""


class Launched:
    """A supervisor that was started; its output goes to files."""

    def __init__(self, process: subprocess.Popen, directory: Path, name: str, mark: str):
        self.process, self.directory, self.mark = process, directory, mark
        self._out, self._err = directory / f"{name}.out", directory / f"{name}.err"

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def log(self, rank: int) -> str:
        return (self.directory / "logs" / f"rank-{rank}.log").read_text()

    def note(self, name: str) -> str:
        """What a rank has noted under this name; waits for it."""
        path = self.directory / name
        eventually(path.exists, lambda: f"{name}; the launcher printed:\n{self.err}")
        return path.read_text()

    def wait(self) -> int:
        """Its exit code; no process is left."""
        try:
            code = self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end:\n{self.out}{self.err}") from None
        eventually(lambda: not self.processes(), lambda: f"the end of {self.processes()}")
        return code

    def processes(self) -> dict[int, str]:
        """Its processes that run, and all that descend from them, in whatever session."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes():
                        command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                        state = (entry / "stat").read_bytes().rpartition(b") ")[2][:1]
                        if state not in (b"Z", b"X"):
                            found[int(entry.name)] = command
        return found

    def kill(self) -> None:
        """Kills the supervisor, as the kernel does when memory runs out."""
        self.process.kill()
        self.process.wait()


class Launcher:
    """Starts launchers in a directory; a context that leaves no process."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.all: list[Launched] = []

    def __call__(
        self,
        code: str,
        *options: object,
        arguments: tuple[str, ...] = (),
        name: str = "script.py",
        output: str = "",
        shell: str = "",
        **popen: object,
    ) -> Launched:
        """Runs `code` after the prelude; `shell` redirects the streams of the supervisor."""
        (self.directory / name).write_text(PRELUDE + textwrap.dedent(code))
        command = [sys.executable, "-m", "towerpack", "launch", "--log-dir", "logs"]
        command += [*map(str, options), name, *arguments]
        return self.run(command, output or f"launch-{len(self.all)}", shell, **popen)

    def run(self, command: list[str], output: str, shell: str = "", **popen: object) -> Launched:
        mark = secrets.token_hex(8)
        environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        environment |= {MARK: mark, **popen.pop("env", {})}
        if shell:
            command = ["bash", "-c", f'exec "$@" {shell}', "bash", *command]
        files = [self.directory / f"{output}.{kind}" for kind in ("out", "err")]
        with open(files[0], "wb") as out, open(files[1], "wb") as err:
            streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err, **popen}
            process = subprocess.Popen(
                command, cwd=self.directory, env=environment, start_new_session=True, **streams
            )
        self.all.append(Launched(process, self.directory, output, mark))
        return self.all[-1]

    def close(self) -> None:
        for launched in self.all:
            launched.kill()
            for pid in launched.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def launcher(directory: Path) -> Iterator[Launcher]:
    found = Launcher(directory)
    try:
        yield found
    finally:
        found.close()


def eventually(condition: Callable[[], object], what: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"it never came: {what()}"
        time.sleep(0.01)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
