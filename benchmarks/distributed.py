#!/usr/bin/env python3
"""Training with two ranks: towerpack beside torch's DistributedDataParallel with gloo.

    make bench-distributed

Each rank is a process on one core, with one thread for each pool of its library. Between turns the
contenders wait for a command; they are not stopped, since ranks that do not answer each other are
taken for dead. The turns are interleaved, so that a noisy neighbour slows all alike. Reported are
medians, and for the goals the medians of the ratios in each repeat.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainers import work
from trainers.bars import Ratio, Share, lines
from training import ROOT, Terminal

HERE = Path(__file__).parent
CORES = sorted(os.sched_getaffinity(0))[:2]
ONE_THREAD = ("OMP_NUM_THREADS", "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS")
NOTICE_SECONDS = 15.0


class Contender(NamedTuple):
    """Processes that run a module: `ranks` of a cluster, or each by itself."""

    module: str
    environment: str
    ranks: int
    together: bool = True


TOWERPACK, PEERS = ".venv", ".venv-peers"
CONTENDERS = {
    "towerpack": Contender("ranks.towerpack_ranks", TOWERPACK, 2),
    "one process": Contender("trainers.towerpack_trainer", TOWERPACK, 1),
    "two apart": Contender("trainers.towerpack_trainer", TOWERPACK, 2, together=False),
    "DDP": Contender("ranks.torch_ddp", PEERS, 2),
    "packed": Contender("ranks.sum_packed", TOWERPACK, 2),
    "unsplit": Contender("ranks.sum_unsplit", TOWERPACK, 2),
    "gloo": Contender("ranks.sum_gloo", PEERS, 2),
}
TRAINING = ["towerpack", "one process", "two apart", "DDP"]
SUMS = ["packed", "unsplit", "gloo"]
MODELS = {**{model: task.words for model, task in work.TASKS.items()}, "sum": "25M float32, sums/s"}
WARM_EPOCHS = {"M1": 2, "M2": 1, "M3": 3, "sum": 5}

Results = dict[tuple[str, str], list[dict]]


def bars(start: float | None) -> list[Ratio | Share]:
    """The goals; `start` is the time that two ranks need to their first step."""
    found: list[Ratio | Share] = [
        Ratio("M1: two ranks, times one process", "M1", "towerpack", "one process", 0.85),
        Ratio("M2: two ranks, times one process", "M2", "towerpack", "one process", 0.95),
        Ratio("M1: times DDP", "M1", "towerpack", "DDP", 1.0),
        Ratio("M2: times DDP", "M2", "towerpack", "DDP", 1.0),
        Ratio("M3: many steps in a call, times DDP", "M3", "towerpack", "DDP", 1.5),
        Ratio("25M float32: time, times gloo's", "sum", "gloo", "packed", most=3.5),
        Ratio("25M float32: times as fast as in one message", "sum", "packed", "unsplit", 2.0),
        Ratio(
            "first step of two ranks, times one's", "start", "two", "one", most=2.0, key="seconds"
        ),
        Share("SIGKILL of a rank: seconds until it is noticed", "restart", "two", 15.0, "noticed"),
    ]
    if start is not None:
        most = round(NOTICE_SECONDS + 2 * start, 1)
        words = "SIGKILL of a rank: seconds to the first step after it"
        found.append(Share(words, "restart", "two", most, "seconds"))
    return found


class Running:
    """The processes of a contender, warm and waiting for a command."""

    def __init__(self, name: str, model: str):
        self.name, kind = name, CONTENDERS[name]
        ports = free_ports(kind.ranks)
        self.processes, self.terminals = [], []
        for rank, core in zip(range(kind.ranks), CORES, strict=False):
            variables = dict.fromkeys(ONE_THREAD, "1")
            if kind.together:
                variables |= cluster(rank, ports)
            self.terminals.append(Terminal())
            python = str(ROOT / kind.environment / "bin" / "python")
            command = [python, "-m", "ranks.serve", kind.module, model, str(WARM_EPOCHS[model])]
            self.processes.append(
                subprocess.Popen(
                    ["taskset", "-c", str(core), *command],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self.terminals[-1].theirs,
                    text=True,
                    cwd=HERE,
                    env={**os.environ, **variables},
                )
            )
            os.close(self.terminals[-1].theirs)
        try:
            self.settings = self._answers()[0]["settings"]
        except BaseException:
            self.close(patience=0)
            raise

    def _answers(self) -> list[dict]:
        answers = []
        for process, terminal in zip(self.processes, self.terminals, strict=True):
            line = process.stdout.readline()
            answers.append(json.loads(line) if line else {"error": "it ended without an answer"})
            if "error" in answers[-1]:
                raise RuntimeError(f"{self.name}: {answers[-1]['error']}\n{terminal.text()}")
        return answers

    def measure(self, epochs: int) -> dict:
        for process in self.processes:
            print(json.dumps(epochs), file=process.stdin, flush=True)
        answers = self._answers()
        return {key: statistics.mean(a[key] for a in answers) for key in ("rate", "epoch")}

    def close(self, patience: float = 20) -> None:
        for process in self.processes:
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in self.processes:
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def cluster(rank: int, ports: list[int]) -> dict[str, str]:
    """The variables by which towerpack and torch find the ranks of a cluster on this machine."""
    found = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(ports[0]),
        "RANK": str(rank),
        "WORLD_SIZE": str(len(ports)),
    }
    if len(ports) > 1:
        addresses = [f"127.0.0.1:{port}" for port in ports]
        found["TOWERPACK_CLUSTER"] = json.dumps({"addresses": addresses, "rank": rank})
    return found


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def measure(
    model: str, names: list[str], options: argparse.Namespace, results: Results, settings: dict
) -> None:
    with contextlib.ExitStack() as stack:
        running, epochs = [], {}
        for name in names:
            try:
                contender = Running(name, model)
                stack.callback(contender.close)
                epochs[name] = max(1, round(options.seconds / contender.measure(1)["epoch"]))
            except RuntimeError as error:
                print(f"{model}: {error}", flush=True)
                continue
            running.append(contender)
            settings[model, name] = contender.settings
        for turn in range(options.turns):
            for contender in running[:: 1 if turn % 2 else -1]:
                answer = contender.measure(epochs[contender.name])
                results.setdefault((model, contender.name), []).append(answer)
            print(f"{model}: turn {turn + 1} of {options.turns}", flush=True)


def command_of(ranks: str, directory: str) -> list[str]:
    python, script = str(ROOT / TOWERPACK / "bin" / "python"), str(HERE / "ranks" / "start.py")
    if ranks == "one":
        return [python, script, directory]
    logs = ["--log-dir", str(Path(directory, "ranks"))]
    return [python, "-m", "towerpack", "launch", "--nproc", "2", *logs, script, directory]


class Script:
    """A script that was started; its whole output is read."""

    def __init__(self, ranks: str, directory: str):
        paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._begun, self._seen = time.perf_counter(), b""
        self.process = subprocess.Popen(
            command_of(ranks, directory),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=HERE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def seconds_until(self, text: bytes) -> float:
        """Waits for the next line with this text; returns how long it took since the last mark."""
        while text not in self._seen:
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                raise RuntimeError(f"the script ended without {text!r}:\n{self._seen.decode()}")
            self._seen += data
        self._seen = self._seen.partition(text)[2]
        return time.perf_counter() - self._begun

    def mark(self) -> None:
        self._begun = time.perf_counter()


@contextlib.contextmanager
def script(ranks: str) -> Iterator[tuple[Script, str]]:
    with tempfile.TemporaryDirectory() as directory:
        started = Script(ranks, directory)
        try:
            yield started, directory
        finally:
            started.process.kill()  # the ranks of a launcher end with it
            started.process.wait()
            started.process.stdout.read()  # until they have ended


def measure_starts(turns: int, results: Results) -> None:
    """Of several turns the first, which fills the caches of the disk, is not counted."""
    uncounted = int(turns > 1)
    for turn in range(turns + uncounted):
        for ranks in ("one", "two"):
            with script(ranks) as (started, _):
                seconds = started.seconds_until(b"first step")
            if turn >= uncounted:
                results.setdefault(("start", ranks), []).append({"seconds": seconds})
    print(f"start: {turns} turns", flush=True)


def measure_restarts(turns: int, results: Results) -> None:
    for _ in range(turns):
        with script("two") as (started, directory):
            started.seconds_until(b"first step")
            pid = int(Path(directory, "1.pid").read_text())
            started.mark()
            os.kill(pid, signal.SIGKILL)
            noticed = started.seconds_until(b"all ranks start again")
            seconds = started.seconds_until(b"first step")
        answer = {"noticed": noticed, "seconds": seconds}
        results.setdefault(("restart", "two"), []).append(answer)
    print(f"restart: {turns} turns", flush=True)


def report(results: Results, settings: dict) -> None:
    def of(model: str, name: str, key: str) -> list[float]:
        return [answer[key] for answer in results.get((model, name), [])]

    print(f"\n{platform.machine()}, cores {CORES}, Python {platform.python_version()}")
    print(
        "\n| | contender | steps/s (sums/s), median | single turns | with |\n|---|---|---|---|---|"
    )
    for (model, name), text in settings.items():
        rates = of(model, name, "rate")
        cells = f"{statistics.median(rates):.4g} | {min(rates):.4g} to {max(rates):.4g}"
        print(f"| {model} {MODELS[model]} | {name} | {cells} | {text} |")
    for model, name in sorted(results.keys() - settings.keys()):
        for key in results[model, name][0]:
            values = of(model, name, key)
            cells = f"{statistics.median(values):.2f} s | {min(values):.2f} to {max(values):.2f}"
            print(f"| {model}: {key} | {name} | {cells} | |")
    starts = of("start", "two", "seconds")
    print(*lines(bars(statistics.median(starts) if starts else None), results), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = [*MODELS, "start", "restart"]
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a turn, at least an epoch")
    parser.add_argument("--parts", nargs="*", default=parts, choices=parts)
    parser.add_argument("--quick", action="store_true", help="see that it runs, in two minutes")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the contenders
    training = TRAINING
    if options.quick:
        options.turns, options.seconds, training = 1, 0.5, ["towerpack", "one process", "DDP"]
        options.parts = [part for part in options.parts if part != "M2"]
    begun, results, settings = time.perf_counter(), {}, {}
    for part in options.parts:
        if part == "start":
            measure_starts(options.turns, results)
        elif part == "restart":
            measure_restarts(min(options.turns, 3), results)
        else:
            names = SUMS if part == "sum" else training
            measure(part, names, options, results, settings)
    report(results, settings)
    print(f"\nmeasured in {(time.perf_counter() - begun) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
