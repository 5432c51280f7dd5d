"""A `towerpack launch` of `tests.train.fault_run`, which the tests of faults disturb."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.train import fault_run

DEADLINE = 240.0  # seconds for an event on a machine that is busy with other tests


class Launched:
    """The process of a launcher and its ranks; the output of the chief is in `output`."""

    def __init__(
        self,
        directory: Path,
        arguments: Sequence[str],
        prefix: Sequence[str],
        module: str,
        run: dict[str, Any],
    ):
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.output = directory / "output"
        command = [sys.executable, "-m", "towerpack", "launch", *arguments]
        command += ["-m", module, json.dumps(run)]
        with open(self.output, "ab") as file:
            self.process = subprocess.Popen(
                [*prefix, *command],
                cwd=directory,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def log(self) -> str:
        return self.output.read_text(errors="replace")

    def members(self) -> list[int]:
        """The living processes of its session: the launcher, the ranks and their workers."""
        return [pid for pid, fields in _processes() if int(fields[3]) == self.process.pid]

    def ranks(self) -> dict[int, int]:
        """The process of each living rank, started by this launcher."""
        found = {}
        for pid, fields in _processes():
            if int(fields[1]) == self.process.pid and (cluster := _cluster_of(pid)):
                found[cluster["rank"]] = pid
        return found

    def step(self) -> int:
        """The last step of the chief, in the present attempt; 0 before its first."""
        done = losses(self.directory)
        return done[-1][1] if done and done[-1][0] == self.attempt() else 0

    def attempt(self) -> int:
        attempts = [c["attempt"] for pid in self.ranks().values() if (c := _cluster_of(pid))]
        return max(attempts, default=-1)

    def signal_at(self, step: int, rank: int, number: int) -> None:
        """Sends a signal to a rank after the chief has done a step, where it may be on hold."""

        def sent() -> bool:
            if self.step() < step or rank not in (found := self.ranks()):
                return False
            os.kill(found[rank], number)
            return True

        self.wait(sent, f"rank {rank} after step {step}")
        self.go(step)

    def go(self, step: int) -> None:
        """Lets the chief continue after a step of `holds`."""
        (self.directory / f"go-{step}").touch()

    def wait_for_step(self, step: int) -> None:
        self.wait(lambda: self.step() >= step, f"step {step}")

    def kill_after_start(self, attempt: int, rank: int, seconds: float) -> None:
        """Kills a rank some time after it was started."""
        pid = self.wait(
            lambda: self.attempt() == attempt and self.ranks().get(rank), f"attempt {attempt}"
        )
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)

    def wait_for_log(self, pattern: str) -> None:
        self.wait(lambda: re.search(pattern, self.log()), pattern)

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + DEADLINE
        while not (found := condition()):
            ended = self.process.poll()
            assert ended is None, f"it ended with {ended} before {what}:\n{self.log()}"
            assert time.monotonic() < deadline, f"no {what}:\n{self.log()}"
            time.sleep(0.02)
        return found

    def exit_code(self) -> int:
        """Waits for the end, after which no process may be left."""
        code = self.process.wait(DEADLINE)
        deadline = time.monotonic() + 30
        while self.members() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.members() == []
        return code

    def kill(self) -> None:
        for _ in range(3):  # what is being started may come after the list
            for pid in self.members():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        self.process.wait()


@contextlib.contextmanager
def launched(
    directory: Path,
    *arguments: str,
    prefix: Sequence[str] = (),
    module: str = fault_run.__name__,
    **run: Any,
) -> Iterator[Launched]:
    """Starts `towerpack launch ARGUMENTS` with the options `run` of `fault_run`."""
    started = Launched(directory, arguments, prefix, module, run)
    try:
        yield started
    finally:
        started.kill()


def undisturbed(directory: Path, **run: Any) -> Path:
    """The directory of the same run in one process, with a tower for each of two ranks."""
    directory.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", fault_run.__name__, json.dumps({"towers": 2, **run, "holds": []})],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stderr
    return directory


def losses(directory: Path) -> list[tuple[int, int, float]]:
    """Attempt, step and loss of each step of the chief, in the order in which they ran."""
    path = directory / "losses"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(a), int(s), float.fromhex(x)) for a, s, x in (line.split() for line in lines)]


def repeated_steps(directory: Path) -> list[int]:
    """How many steps each attempt that followed another one has trained again."""
    done, last = losses(directory), 0
    repeated: dict[int, int] = {}
    for attempt, step, _ in done:
        repeated.setdefault(attempt, max(0, last + 1 - step))
        last = step
    return list(repeated.values())[1:]


def assert_equal_runs(disturbed: Path, reference: Path, ranks: int = 2, **tolerance: Any) -> None:
    """Every step has the loss of the reference, in every attempt, and all weights are its.

    Bit for bit, unless `tolerance` is given, as to numpy's `assert_allclose`.
    """
    expected = {step: loss for _, step, loss in losses(reference)}
    found = losses(disturbed)
    assert {step for _, step, _ in found} == expected.keys()
    tolerance = tolerance or {"rtol": 0, "atol": 0}
    for attempt, step, loss in found:
        where = f"the loss of step {step} in attempt {attempt}"
        np.testing.assert_allclose(loss, expected[step], **tolerance, err_msg=where)
    with np.load(reference / "weights-0.npz", allow_pickle=False) as file:
        weights = dict(file)
    for rank in range(ranks):
        with np.load(disturbed / f"weights-{rank}.npz", allow_pickle=False) as file:
            assert file.keys() == weights.keys()
            for name, value in weights.items():
                where = f"{name} of rank {rank}"
                np.testing.assert_allclose(file[name], value, **tolerance, err_msg=where)


def _processes() -> Iterator[tuple[int, list[str]]]:
    """The living processes, with the fields of their `stat` after the name."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    yield int(entry), fields


def _cluster_of(pid: int) -> dict[str, Any] | None:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if line.startswith(b"TOWERPACK_CLUSTER="):
                return json.loads(line.partition(b"=")[2])
    return None
