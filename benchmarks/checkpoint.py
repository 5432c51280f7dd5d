#!/usr/bin/env python3
"""Checkpoints: how much saving slows down training, and how fast a checkpoint loads.

    make bench-checkpoint
    .venv/bin/python benchmarks/checkpoint.py [--megabytes 1000] [--phase 40] [--phases 6]

Saving: one run whose state (weights and Adam's moments) has that size. Phases with and without a
`ModelSaver(every='5 s')` alternate within the run, so that other load on the machine affects both.
The time of a step includes callbacks and the copies of the variables that it changes. Targets: the
median step takes at most 5% longer, and the 99th percentile at most 1.5 times as long.

Loading: a state of the same size by `SmartInit(...).load(variables)` and by
`tf.train.Checkpoint.read` of its own checkpoint, in turns, from the page cache. The medians are
compared. Target: at least as fast.

It needs about four times the state in memory, and three times on the disk. Run it alone.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._tensorflow import tf
from towerpack.callbacks import Callback, ModelSaver, StopTraining
from towerpack.checkpoint import SmartInit, verify_checkpoint
from towerpack.checkpoint.directory import get_checkpoint_path
from towerpack.checkpoint.store import snapshot, write_checkpoint
from towerpack.dataflow import DataFromList
from towerpack.models import FullyConnected, ModelDesc
from towerpack.optimizer import Adam
from towerpack.train import SimpleTrainer, TrainConfig, launch_train_with_config

BATCH = 64
LAYERS = 3
WARM_UP = 5  # steps at the beginning of the run that do not count
ROUNDS = 7
EVERY = "5 s"


class Wide(ModelDesc):
    """Square layers whose weights and two slots for each have the requested size."""

    def __init__(self, megabytes: float) -> None:
        self.width = int((megabytes * 1e6 / 4 / 3 / LAYERS) ** 0.5)

    def inputs(self) -> list[Any]:
        return [tf.TensorSpec([BATCH, self.width], tf.float32, "x")]

    def build_graph(self, x: Any) -> Any:
        for layer in range(LAYERS):
            x = FullyConnected(f"fc{layer}", x, self.width, activation=tf.nn.relu)
        return tf.reduce_mean(tf.square(x), name="cost")

    def optimizer(self) -> Any:
        return Adam(1e-5)


class SavingInTurns(ModelSaver):
    """Saves in every second phase only."""

    saving = False
    saves = 0

    def _trigger(self) -> None:
        if self.saving:
            self.saves += 1
            super()._trigger()

    def _trigger_epoch(self) -> None: ...


class Phases(Callback):
    """Measures each step, and switches saving on and off."""

    def __init__(self, saver: SavingInTurns, seconds: float, phases: int):
        self.saver, self.seconds, self.phases = saver, seconds, phases
        self.times: dict[bool, list[float]] = {False: [], True: []}

    def _before_train(self) -> None:
        self.last, self.begin, self.phase = time.perf_counter(), None, 0

    def _trigger_step(self) -> None:
        now = time.perf_counter()
        if self.global_step > WARM_UP:
            self.begin = self.begin or now
            self.times[self.saver.saving].append(now - self.last)
            if now - self.begin > self.seconds:
                self._next_phase()
                now = time.perf_counter()
        self.last = now

    def _next_phase(self) -> None:
        self.saver.saver.wait()  # so that a save does not slow down the next phase
        self.phase += 1
        if self.phase == self.phases:
            raise StopTraining("the last phase is over")
        self.saver.saving = not self.saver.saving
        self.begin = time.perf_counter()


def measure_saving(megabytes: float, seconds: float, phases: int, directory: Path) -> None:
    model = Wide(megabytes)
    saver = SavingInTurns(1, None, checkpoint_dir=directory, every=EVERY)
    watch = Phases(saver, seconds, phases)
    batch = np.random.default_rng(0).normal(size=(BATCH, model.width)).astype(np.float32)
    config = TrainConfig(
        model=model,
        dataflow=DataFromList([[batch]] * 1000, shuffle=False),
        callbacks=[saver, watch],
        extra_callbacks=[],
        monitors=[],
        max_epoch=1000,
    )
    launch_train_with_config(config, SimpleTrainer(jit=False))
    without, during = watch.times[False], watch.times[True]
    print(f"steps: {len(without)} without saving, {len(during)} with {saver.saves} saves")
    for name, of in (("median", statistics.median), ("p99", lambda t: np.percentile(t, 99))):
        plain, burdened = of(without), of(during)
        print(
            f"  {name:7} {plain * 1e3:8.1f} ms   with saving {burdened * 1e3:8.1f} ms   "
            f"ratio {burdened / plain:.3f}"
        )
    print(f"  training waited {saver.saver.waited:.2f} s for writes; {saver.saver.failures} failed")
    latest = get_checkpoint_path(directory)
    print(
        f"  the last one, {Path(latest).name}, is {', '.join(verify_checkpoint(latest)) or 'sound'}"
    )


def measure_writing(variables: dict[str, Any], directory: Path) -> None:
    size = sum(variable.numpy().nbytes for variable in variables.values())
    writes, theirs = [], []
    checkpoint = tf.train.Checkpoint(**{f"v{i}": v for i, v in enumerate(variables.values())})
    taken = snapshot(variables)
    for _ in range(3):
        writes.append(costs(lambda: write_checkpoint(directory / "ours", taken)))
        theirs.append(costs(lambda: checkpoint.write(str(directory / "theirs"))))
    print(f"one save of {size / 1e6:.0f} MB, best of three:")
    for name, of in (
        ("the write of a snapshot, on the disk  ", writes),
        ("tf.train.Checkpoint.write, not fsynced", theirs),
    ):
        seconds, cpu = min(of)
        print(f"  {name} {seconds:7.3f} s   {cpu:.3f} s of CPU time")


def measure_loading(variables: dict[str, Any], directory: Path) -> None:
    loader = SmartInit(directory / "ours")
    checkpoint = tf.train.Checkpoint(**{f"v{i}": v for i, v in enumerate(variables.values())})
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(timed(lambda: loader.load(variables, strict=True)))
        theirs.append(timed(lambda: checkpoint.read(str(directory / "theirs")).assert_consumed()))
    plain, fast = statistics.median(theirs), statistics.median(ours)
    print(f"loading, median of {ROUNDS}:")
    print(f"  SmartInit.load           {fast:7.3f} s")
    print(f"  tf.train.Checkpoint.read {plain:7.3f} s   {plain / fast:.2f} times ours")


def timed(action: Any) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def costs(action: Any) -> tuple[float, float]:
    """Seconds, and seconds of CPU time of all threads."""
    before = time.process_time()
    return timed(action), time.process_time() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=float, default=1000, help="of state")
    parser.add_argument("--phase", type=float, default=40, help="seconds of a phase")
    parser.add_argument("--phases", type=int, default=6)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        measure_saving(options.megabytes, options.phase, options.phases, directory / "run")
        count = max(1, int(options.megabytes / 10))
        values = np.random.default_rng(0).normal(size=2_500_000).astype(np.float32)
        variables = {f"layer{i}/W": tf.Variable(values) for i in range(count)}
        directory.mkdir(exist_ok=True)
        measure_writing(variables, directory)
        measure_loading(variables, directory)


if __name__ == "__main__":
    main()
