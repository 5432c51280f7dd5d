#!/usr/bin/env python3
"""How much of a step of M2 is convolutions, and how far they are from what the machine can do.

    .venv/bin/python benchmarks/convolution_limit.py

Runs the bare loop of `benchmarks/training.py`, one operation at a time, with oneDNN telling what it
does (`ONEDNN_VERBOSE=1`), and a large matrix product beside it.
"""

from __future__ import annotations

import collections
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
WARM, MEASURED = 3, 5  # steps
SIDE, PRODUCTS = 3072, 8  # of the matrices, and how often they are multiplied
MARK = "a step ends after"


def run() -> None:
    """The part that is listened to, in a process of its own."""
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(1)
    import numpy as np
    from trainers import bare_loop, work

    step, order = bare_loop.single_step("M2"), np.random.default_rng(0)
    batches = bare_loop.batches("M2", work.arrays("M2"), order)
    for _ in range(WARM + MEASURED):
        batch = next(batches)
        begun = time.perf_counter()
        step(*batch).numpy()
        print(MARK, time.perf_counter() - begun, flush=True)
    matrix = tf.random.normal([SIDE, SIDE])
    multiply = tf.function(lambda: matrix @ matrix, autograph=False)
    multiply()
    times = []
    for _ in range(PRODUCTS):
        begun = time.perf_counter()
        multiply().numpy()
        times.append(time.perf_counter() - begun)
    print(MARK, min(times), flush=True)


def operations(problem: str) -> int:
    """Of a convolution: multiplications and additions, from oneDNN's words for its shapes."""
    sizes = {key: int(value) for key, value in re.findall(r"([a-z]+)(\d+)", problem)}
    return 2 * math.prod(sizes[key] for key in ("mb", "ic", "oc", "oh", "ow", "kh", "kw"))


def main() -> None:
    done = subprocess.run(
        [sys.executable, __file__, "run"],
        cwd=HERE,
        env={**os.environ, "ONEDNN_VERBOSE": "1", "TF_ENABLE_ONEDNN_OPTS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    steps = [collections.Counter()]
    seconds: list[float] = []
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            seconds.append(float(line.split()[-1]))
            steps.append(collections.Counter())
        elif ",primitive,exec," in line:
            fields = line.split(",")
            steps[-1][fields[5]] += float(fields[-1]) / 1e3
            if fields[5] == "convolution":
                steps[-1]["operations"] += operations(fields[-2])
    *seconds, product = seconds
    best = min(range(WARM, WARM + MEASURED), key=seconds.__getitem__)
    parts = steps[best]
    count = parts.pop("operations")
    print(f"a step of M2: {seconds[best] * 1e3:.0f} ms, the best of {MEASURED}; in it")
    for kind, spent in parts.most_common():
        print(f"  {kind}: {spent * 1e3:.1f} ms")
    print(f"convolutions: {count / parts['convolution'] / 1e9:.0f} GFLOPS")
    print(f"a product of matrices of {SIDE} x {SIDE}: {2 * SIDE**3 / product / 1e9:.0f} GFLOPS")


if __name__ == "__main__":
    run() if sys.argv[1:] == ["run"] else main()
