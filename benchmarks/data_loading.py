#!/usr/bin/env python3
"""Data loading: towerpack, its peers and the limits of the machine, side by side.

    make bench-data

Each contender is a process of its own, in its own environment, that is idle unless it is its turn.
The repeats are interleaved: one turn of every contender, then the next, so that a noisy neighbour
hits all alike. Reported are medians; ratios are those of turns of the same repeat, their median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

from loaders import work
from ratios import median_ratio

HERE = Path(__file__).parent
ROOT = HERE.parent

CONTENDERS = {  # module: environment
    "limits": ".venv",
    "towerpack_flows": ".venv",
    "towerpack_plain": ".venv",
    "torch_loader": ".venv-peers",
    "grain_loader": ".venv-peers",
    "tfdata_loader": ".venv",
    "webdataset_loader": ".venv-peers",
    "tensorpack_flows": ".venv-tensorpack",
}
WORKLOADS = {
    "W1": "decode + random crop 224 + flip, files",
    "W1db": "the same from LMDB",
    "W2": "224x224x3 made instantly, batched in the worker",
    "W2m": "the same sent singly, batched in the parent",
    "W3": "200,000 rows of 32 floats, shuffled",
    "W3f": "the same with a Python function per sample",
    "W4": "32x32 pad, crop, flip, normalize",
}


class Contender:
    """A process that measures when it is told to."""

    def __init__(self, module: str, environment: str):
        self.module = module
        self.process = subprocess.Popen(
            [ROOT / environment / "bin" / "python", "-m", "loaders.serve", f"loaders.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=HERE,
        )
        self.workloads = self._answer()["ready"]

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.module} ended with status {self.process.wait()}")
        return json.loads(line)

    def measure(self, workload: str, directory: str, seconds: float) -> dict:
        print(json.dumps([workload, directory, seconds]), file=self.process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--workloads", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS), choices=list(CONTENDERS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        work.make_data(directory)
        contenders = []
        for module in options.only:
            if (ROOT / CONTENDERS[module]).exists():
                contenders.append(Contender(module, CONTENDERS[module]))
            else:
                print(f"{module}: left out, there is no {CONTENDERS[module]}")
        results = measure(contenders, options, directory)
        for contender in contenders:
            contender.close()
    report(results, options.workloads)


def measure(contenders: list[Contender], options: argparse.Namespace, directory: str) -> dict:
    results: dict[tuple[str, str], list[dict]] = {}
    for repeat in range(options.repeats):
        for workload in options.workloads:
            for contender in contenders:
                if workload in contender.workloads:
                    answer = contender.measure(workload, directory, options.seconds)
                    if "error" in answer:
                        print(f"{contender.module} {workload}: {answer['error']}")
                        contender.workloads.remove(workload)
                        continue
                    results.setdefault((workload, contender.module), []).append(answer)
        print(f"repeat {repeat + 1} of {options.repeats} done", flush=True)
    return results


def report(results: dict, workloads: list[str]) -> None:
    def median(workload: str, module: str, key: str = "rate") -> float | None:
        runs = results.get((workload, module))
        return statistics.median(run[key] for run in runs) if runs else None

    def ratio(workload: str, module: str, other: str) -> float | None:
        return median_ratio(results.get((workload, module)), results.get((workload, other)), "rate")

    print("\nsamples/s, median; in brackets the ratio to the limit\n")
    modules = [name for name in CONTENDERS if any((w, name) in results for w in workloads)]
    print("| workload | " + " | ".join(modules) + " |")
    print("|---" * (len(modules) + 1) + "|")
    for workload in workloads:
        cells = []
        for module in modules:
            rate, of_limit = median(workload, module), ratio(workload, module, "limits")
            cells.append(
                f"{rate:,.0f}" + (f" ({of_limit:.2f})" if of_limit else "") if rate else ""
            )
        print(f"| {workload} {WORKLOADS[workload]} | " + " | ".join(cells) + " |")
    print("\n| workload | of the limit | times the best peer | first batch, s |")
    print("|---|---|---|---|")
    for workload in workloads:
        mine, of_limit = "towerpack_flows", ratio(workload, "towerpack_flows", "limits")
        peers = [m for m in modules if not m.startswith(("limits", "towerpack"))]
        against = min((found for m in peers if (found := ratio(workload, mine, m))), default=None)
        if of_limit:
            times = f"{against:.2f}" if against else ""
            first = median(workload, mine, "first")
            print(f"| {workload} | {of_limit:.2f} | {times} | {first:.2f} |")


if __name__ == "__main__":
    main()
