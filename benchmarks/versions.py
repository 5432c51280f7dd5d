"""Compares the speed of two checkouts of towerpack, in interleaved turns on one machine.

    git worktree add /tmp/before COMMIT
    .venv/bin/python benchmarks/versions.py /tmp/before . --data W2 W4 --train M3

Each checkout runs its own benchmarks, so both may have different interfaces. Prints the median of
the ratios of neighbouring turns: above 1, the second checkout is faster.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from loaders import work

DATA_SECONDS, TRAIN_SECONDS = 2.0, 4.0


class Contender:
    """A checkout in a process of its own, which measures on command."""

    def __init__(self, checkout, script, *arguments):
        paths = [str(checkout / "src"), str(checkout / "benchmarks")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self.process = subprocess.Popen(
            [sys.executable, str(checkout / "benchmarks" / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=checkout,
        )
        self.answer()  # it is ready

    def answer(self):
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def rate(self, command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self.answer()["rate"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def compare(name, contenders, command, turns):
    rates = [[], []]
    for turn in range(turns):
        for number in (0, 1) if turn % 2 else (1, 0):
            rates[number].append(contenders[number].rate(command))
    ratios = [new / old for old, new in zip(*rates, strict=True)]
    before, after = map(statistics.median, rates)
    print(
        f"{name}: {before:,.6g} -> {after:,.6g} per second, ratio {statistics.median(ratios):.3f} "
        f"({min(ratios):.2f} to {max(ratios):.2f})",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs=2, type=Path, metavar="CHECKOUT")
    parser.add_argument("--data", nargs="*", default=[], help="workloads of data_loading.py")
    parser.add_argument("--train", nargs="*", default=[], help="models of training.py")
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    checkouts = [checkout.resolve() for checkout in options.checkouts]
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:

        def start(*arguments):
            found = [Contender(checkout, *arguments) for checkout in checkouts]
            for contender in found:
                stack.callback(contender.close)
            return found

        if options.data:
            if any(workload.startswith("W1") for workload in options.data):
                work.make_data(directory)
            contenders = start("loaders/serve.py", "loaders.towerpack_flows")
            for workload in options.data:
                command = [workload, directory, DATA_SECONDS]
                compare(workload, contenders, command, options.turns)
            stack.close()
        for model in options.train:
            contenders = start("trainers/serve.py", "trainers.towerpack_trainer", model, directory)
            compare(model, contenders, TRAIN_SECONDS, options.turns)
            stack.close()


if __name__ == "__main__":
    main()
