#!/usr/bin/env python3
"""Training: towerpack, its peers and TensorFlow by hand, side by side.

    make bench-train

Each contender is a process of its own, in its own environment, that is stopped unless it is its
turn: while it merely waited, tf.data's tuning would sleep longer and longer, and Keras wait for it.
The repeats are interleaved: one turn of every contender, then the next, so that a noisy neighbour
hits all alike. Speeds are those of the steady state, with the first epochs left out; reported are
medians, and for the bars that towerpack has to reach the medians of the ratios in each repeat.
Where the turns do not yet tell whether a bar is reached, those it compares have further ones.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import pty
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

from trainers import work
from trainers.bars import BARS, lines, undecided

HERE = Path(__file__).parent
ROOT = HERE.parent

CONTENDERS = {  # module: environment
    "bare_loop": ".venv",
    "towerpack_trainer": ".venv",
    "towerpack_replicated": ".venv",
    "towerpack_shared": ".venv",
    "keras_fit": ".venv",
    "keras_without_onednn": ".venv",
    "keras_best": ".venv",
    "towerpack_keras": ".venv",
    "torch_default": ".venv-peers",
    "torch_eager": ".venv-peers",
    "torch_compiled": ".venv-peers",
    "lightning_fit": ".venv-peers",
    "jax_scan": ".venv-peers",
    "jpeg_flow": ".venv",
    "jpeg_trainer": ".venv",
    "start_bare": ".venv",
    "start_towerpack": ".venv",
}
MODELS = {
    **{model: task.words for model, task in work.TASKS.items()},
    "E1": "JPEG files into a convnet that is slower than the flow, batch 64",
    "E2": "JPEG files into a convnet that is faster than the flow, batch 64",
    "start": "from the command to the first step of M1, s; peak memory, MB",
}
ONLY_ON = {
    "towerpack_replicated": ["M1"],
    "towerpack_shared": ["M1"],
    "keras_without_onednn": ["M1", "M2"],
    "torch_default": ["M1", "M2"],
}
REFILL_SECONDS = 5.0  # after a turn with JPEG files: the queue of the one before fills up again
SCREEN_BYTES = 4096  # of what a contender has printed last, to be shown when it fails

Results = dict[tuple[str, str], list[dict]]


class Terminal:
    """Where a contender prints and draws its progress bar: read, and forgotten but for the end."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        self._last: deque[int] = deque(maxlen=SCREEN_BYTES)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                self._last.extend(os.read(self._ours, SCREEN_BYTES))
            except OSError:  # the contender has ended
                return

    def text(self) -> str:
        return bytes(self._last).decode(errors="replace").strip()


class Contender:
    """A process that trains when it is told to; here once it has settled."""

    def __init__(self, module: str, model: str, directory: str):
        self.module = module
        self.terminal = Terminal()
        self.process = start(
            module, self.terminal, "trainers.serve", f"trainers.{module}", model, directory
        )
        self.settings = self._answer()["ready"]
        self._signal(signal.SIGSTOP)

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"error": "it ended without a word"}
        if "error" in answer:
            self.process.wait(30)
            raise RuntimeError(f"{self.module}: {answer['error']}\n{self.terminal.text()}")
        return answer

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    def measure(self, seconds: float) -> dict:
        self._signal(signal.SIGCONT)
        print(json.dumps(seconds), file=self.process.stdin, flush=True)
        answer = self._answer()
        self._signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait(60)


def start(module: str, terminal: Terminal, *arguments: str) -> subprocess.Popen:
    process = subprocess.Popen(
        [ROOT / CONTENDERS[module] / "bin" / "python", "-m", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=terminal.theirs,
        text=True,
        cwd=HERE,
        process_group=0,
    )
    os.close(terminal.theirs)
    return process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--most", type=int, default=15, help="repeats, where a bar is undecided")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a turn, at least an epoch")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS), choices=list(CONTENDERS))
    options = parser.parse_args()
    begun = time.perf_counter()
    results: Results = {}
    settings: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for model in options.models:
            modules = [m for m in options.only if takes_part(m, model)]
            if model == "start":
                measure_starts(modules, options.repeats, results)
            elif modules:
                make_pictures(model, directory)
                measure(model, modules, options, directory, results, settings)
    report(results, settings)
    print(f"\nmeasured in {(time.perf_counter() - begun) / 60:.0f} minutes")


def takes_part(module: str, model: str) -> bool:
    if model in ONLY_ON.get(module, [model]):
        kind = {"E": "jpeg", "s": "start"}.get(model[0])
        fits = module.startswith(kind) if kind else not module.startswith(("jpeg", "start"))
        if fits and not (ROOT / CONTENDERS[module]).exists():
            print(f"{module}: left out, there is no {CONTENDERS[module]}")
            return False
        return fits
    return False


def make_pictures(model: str, directory: str) -> None:
    if model.startswith("E"):
        command = "import sys; from loaders import work; work.make_data(sys.argv[1])"
        python = ROOT / CONTENDERS["jpeg_flow"] / "bin" / "python"
        subprocess.run([python, "-c", command, directory], cwd=HERE, check=True)


def measure(
    model: str,
    modules: list[str],
    options: argparse.Namespace,
    directory: str,
    results: Results,
    settings: dict[str, dict[str, str]],
) -> None:
    contenders = []
    for module in modules:
        try:
            contenders.append(Contender(module, model, directory))
        except RuntimeError as error:
            print(f"{model}: {error}", flush=True)
            continue
        settings.setdefault(module, {})[model] = contenders[-1].settings
    for repeat in range(max(options.repeats, options.most)):
        if repeat >= options.repeats:
            contenders = still_needed(contenders, model, results)
            if not contenders:
                break
        for contender in contenders:
            time.sleep(REFILL_SECONDS if model.startswith("E") else 0)
            answer = contender.measure(options.seconds)
            results.setdefault((model, contender.module), []).append(answer)
        print(f"{model}: repeat {repeat + 1}, {len(contenders)} contenders", flush=True)
    for contender in contenders:
        contender.close()


def still_needed(contenders: list[Contender], model: str, results: Results) -> list[Contender]:
    """Those of bars that are undecided. The others end, for good."""
    running = {contender.module for contender in contenders}
    bars = [b for b in BARS if b.model == model and b.contenders <= running]
    needed = set().union(*(bar.contenders for bar in bars if undecided(bar, results)))
    for contender in contenders:
        if contender.module not in needed:
            contender.close()
    return [contender for contender in contenders if contender.module in needed]


def measure_starts(modules: list[str], repeats: int, results: Results) -> None:
    """Fresh processes; the first of each, which fills the caches of the disk, is not counted."""
    for repeat in range(repeats + 1):
        for module in modules:
            begun = time.perf_counter()
            terminal = Terminal()
            process = start(module, terminal, f"trainers.{module}")
            if not process.stdout.readline().startswith("first step"):
                raise RuntimeError(f"{module} did not come to its first step\n{terminal.text()}")
            seconds = time.perf_counter() - begun
            memory = float(process.communicate()[0].split()[-1])
            if repeat:
                answer = {"seconds": seconds, "memory": memory}
                results.setdefault(("start", module), []).append(answer)
    print(f"start: {repeats} repeats done", flush=True)


def report(results: Results, settings: dict[str, dict[str, str]]) -> None:
    def median(model: str, module: str, key: str = "rate") -> float | None:
        runs = results.get((model, module))
        return statistics.median(run[key] for run in runs) if runs else None

    print(f"\n{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for key, words, models in (
        ("rate", "steps/s", [m for m in MODELS if m != "start"]),
        ("waiting", "share of the time that steps waited for data", ["E1", "E2"]),
        ("seconds", "seconds", ["start"]),
        ("memory", "MB", ["start"]),
    ):
        measured = [m for m in models if any(m == model for model, _ in results)]
        table(words, measured, key, results, median)
    print("\n| contender | with |\n|---|---|")
    for module, by_model in settings.items():
        for text in dict.fromkeys(by_model.values()):
            models = ", ".join(model for model, other in by_model.items() if other == text)
            print(f"| {module} on {models} | {text} |")
    print(*lines(BARS, results), sep="\n")


def table(words: str, models: list[str], key: str, results: Results, median) -> None:
    names = [n for n in CONTENDERS if any((model, n) in results for model in models)]
    if not names:
        return
    print(f"\n{words}, median\n")
    print("| | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for model in models:
        cells = [median(model, name, key) for name in names]
        texts = ["" if value is None else f"{value:.4g}" for value in cells]
        print(f"| {model} {MODELS[model]} | " + " | ".join(texts) + " |")


if __name__ == "__main__":
    main()
