#!/usr/bin/env python3
"""Estimators with the interface of scikit-learn: how long they fit, at equal accuracy.

    make bench-sklearn

Each contender is a process of its own, in its own environment, that is stopped unless it is its
turn. All fit the same rows with the same layers, batches, optimizer and epochs. The turns are
interleaved: every contender fits for a seed, then all again, then the next seed. Reported are the
first fit of each process, in which libraries trace and compile; the median of all later ones; and
for each seed the fit of the fastest peer as a multiple of towerpack's. Target: at least 1 in all.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from fits.work import WORDS

HERE = Path(__file__).parent
PEERS = HERE.parent / ".venv-peers" / "bin" / "python"
OURS = "towerpack_classifier"
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
CONTENDERS = {  # name: module, interpreter, variables of the environment, packages
    OURS: (OURS, sys.executable, {}, ["tensorflow-cpu"]),
    "mlp": ("mlp", PEERS, {}, ["scikit-learn", "numpy"]),
    "mlp, one thread": ("mlp", PEERS, ONE_THREAD, ["scikit-learn", "numpy"]),
    "skorch": ("skorch_default", PEERS, {}, ["skorch", "torch"]),
    "skorch, batched": ("skorch_batched", PEERS, {}, ["skorch", "torch"]),
    "scikeras": ("scikeras_default", PEERS, {}, ["scikeras", "keras", "tensorflow-cpu"]),
}
CLOSE = 0.01  # accuracies that differ by at most that are equal: seeds differ as much


class Contender:
    """A process that fits when it is told to."""

    def __init__(self, name: str):
        module, python, variables, packages = CONTENDERS[name]
        self.name, self._errors = name, tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, "-m", "fits.serve", f"fits.{module}", *packages],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=HERE,
            env={**os.environ, **variables},
            process_group=0,
        )
        self.versions = self._answer()["ready"]
        self._signal(signal.SIGSTOP)

    def fit(self, task: str, seed: int) -> dict[str, float]:
        self._signal(signal.SIGCONT)
        print(json.dumps({"task": task, "seed": seed}), file=self._process.stdin, flush=True)
        answer = self._answer()
        self._signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        self._process.stdin.close()
        self._process.wait(60)

    def _answer(self) -> dict:
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._errors.seek(0)
        raise RuntimeError(f"{self.name} has ended:\n{self._errors.read()[-4096:]}")

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3, help="fits for each seed")
    parser.add_argument("--tasks", nargs="*", default=list(WORDS), choices=list(WORDS))
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS), choices=list(CONTENDERS))
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for task in options.tasks:
        contenders = [Contender(name) for name in options.only]
        first = {each.name: each.fit(task, 0) for each in contenders}
        fits: dict[str, list[list[dict]]] = {name: [] for name in options.only}
        for seed in range(1, options.seeds + 1):
            turns = [[each.fit(task, seed) for each in contenders] for _ in range(options.repeats)]
            for each, of_seed in zip(contenders, zip(*turns, strict=True), strict=True):
                fits[each.name].append(list(of_seed))
            print(f"{task}: seed {seed} of {options.seeds}", flush=True)
        report(task, {each.name: each.versions for each in contenders}, first, fits)
        for each in contenders:
            each.close()


def report(task: str, versions: dict, first: dict, fits: dict[str, list[list[dict]]]) -> None:
    def median(turns: list[dict], key: str = "seconds") -> float:
        return statistics.median(turn[key] for turn in turns)

    print(f"\n{WORDS[task]}\n\n| | first fit, s | later fits, s | accuracy | with |")
    print("|---|---|---|---|---|")
    accuracies = {}
    for name, by_seed in fits.items():
        turns = [turn for of_seed in by_seed for turn in of_seed]
        accuracies[name] = median(turns, "accuracy")
        cells = [f"{first[name]['seconds']:.2f}", f"{median(turns):.3f}", f"{accuracies[name]:.3f}"]
        print(f"| {name} | " + " | ".join(cells) + f" | {versions[name]} |")
    peers = [name for name in fits if name != OURS]
    if OURS not in fits or not peers:
        return
    ratios = []
    for seed, of_seed in enumerate(fits[OURS]):
        fastest = min(peers, key=lambda name: median(fits[name][seed]))
        ratios.append(median(fits[fastest][seed]) / median(of_seed))
        print(f"seed {seed + 1}: {fastest} takes {ratios[-1]:.2f} times as long as towerpack")
    equal = accuracies[OURS] >= max(accuracies.values()) - CLOSE
    print(f"towerpack is at least as fast in {sum(r >= 1 for r in ratios)} of {len(ratios)} seeds")
    print("at equal accuracy" if equal else "BUT ITS ACCURACY IS LOWER", end="\n\n")


if __name__ == "__main__":
    main()
