"""Runs a function in several processes that form a cluster, for tests.

    results = run_ranks(train, 2, {"steps": 20})

calls `train({"steps": 20})` on two ranks; `results` has what it returned on each, which is JSON.
The function belongs to a module of `tests` that the ranks import, so keep it small: pytest need not
be loaded there. A process takes seconds to start: run many cases in one call.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from towerpack.core.cluster import Cluster
from towerpack.core.processes import killed_with_parent

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 110.0  # less than the time limit of a test, which would not show the output
NUMBER = "RANK_OF_A_TEST"  # the variable with it: all ranks have the same arguments
TAIL = 8000  # characters of the output of a rank that failed


class Rank:
    """A rank that was started: its process, its output, and the result of its function."""

    def __init__(self, number: int, process: subprocess.Popen, directory: Path):
        self.number, self.process, self.directory = number, process, directory

    @property
    def output(self) -> str:
        return (self.directory / f"rank-{self.number}.log").read_text(errors="replace")

    @property
    def result(self) -> Any:
        path = self.directory / f"rank-{self.number}.json"
        return json.loads(path.read_text()) if path.exists() else None


@contextlib.contextmanager
def started(
    function: Callable[[Any], Any],
    ranks: int,
    argument: Any = None,
    directory: Path | None = None,
    environ: Mapping[str, str] | None = None,
    **of_cluster: Any,
) -> Iterator[list[Rank]]:
    """Starts the ranks and kills them at the end; for tests that interfere with them.

    They run in `directory`, by default the current one. `of_cluster` are fields of `Cluster`, as
    `token` and `attempt`. A single rank has no cluster: it is what the others are compared with.
    """
    directory = directory or Path.cwd()
    for path in directory.glob("rank-*.json"):
        path.unlink()
    addresses = free_addresses(ranks)
    name = f"{function.__module__}:{function.__qualname__}"
    begun: list[Rank] = []
    try:
        for number in range(ranks):
            cluster = Cluster(addresses, number, "a test", **of_cluster)
            variables = cluster.variables() if ranks > 1 else {}
            variables[NUMBER] = str(number)
            variables["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
            command = [sys.executable, "-m", __name__, name, json.dumps(argument)]
            with open(directory / f"rank-{number}.log", "wb") as log:
                process = subprocess.Popen(
                    command,
                    cwd=directory,
                    env={**os.environ, **variables, **(environ or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            begun.append(Rank(number, process, directory))
        yield begun
    finally:
        for rank in begun:
            rank.process.kill()
            rank.process.wait()


def run_ranks(
    function: Callable[[Any], Any],
    ranks: int,
    argument: Any = None,
    seconds: float = PATIENCE_SECONDS,
    **options: Any,
) -> list[Any]:
    """The result of the function on each rank; fails with the output of a rank that fails."""
    with started(function, ranks, argument, **options) as begun:
        wait(begun, seconds)
        return [rank.result for rank in begun]


def wait(begun: list[Rank], seconds: float = PATIENCE_SECONDS) -> None:
    """Waits until all ranks have ended well; fails as soon as one does not."""
    deadline = time.monotonic() + seconds
    while any(rank.process.poll() is None for rank in begun):
        failed = [rank for rank in begun if rank.process.poll()]
        if failed or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    wrong = [rank for rank in begun if rank.process.poll() != 0]
    ended = [rank for rank in wrong if rank.process.poll()]  # the others may wait for this one
    for rank in (ended or wrong)[:1]:
        raise AssertionError(
            f"rank {rank.number} ended with {rank.process.poll()} (None: it still ran):\n"
            f"{rank.output[-TAIL:]}"
        )


def free_addresses(count: int) -> tuple[str, ...]:
    """Addresses of this machine whose ports are free."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return tuple(f"127.0.0.1:{each.getsockname()[1]}" for each in sockets)


def main(name: str, argument: str) -> None:
    """What runs in a rank."""
    module, _, function = name.partition(":")
    found = getattr(importlib.import_module(module), function)(json.loads(argument))
    Path(f"rank-{os.environ[NUMBER]}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    killed_with_parent(os.getppid())
    main(*sys.argv[1:])
