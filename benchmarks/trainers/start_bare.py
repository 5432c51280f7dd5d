"""A script of the bare loop on M1: says when its first step is done, at last its peak memory."""

import numpy as np

from trainers import bare_loop, work

data, order = work.arrays("M1"), np.random.default_rng(0)
step = bare_loop.single_step("M1")
steps = 0
for _ in range(work.START_EPOCHS):
    for batch in bare_loop.batches("M1", data, order):
        step(*batch)
        steps += 1
        if steps == 1:
            print("first step", flush=True)
print(work.peak_memory(), flush=True)
